"""A run's report as pages for people: report.html, which needs nothing else, and report.md."""

from __future__ import annotations

import shlex
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import typer
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from tandem.obs import get_logger
from tandem.types import TandemError
from tandem_controller.curves import Series, svg, thinned
from tandem_controller.live import SPARK, sparkline
from tandem_controller.run_dir import write_text
from tandem_controller.sessions import Session
from tandem_controller.summary import Summary, gather
from tandem_controller.telling import one_line

log = get_logger(__name__)
HTML, MARKDOWN = "report.html", "report.md"
SPECIAL = "\\`*_[]<>#|~&"  # in Markdown


def report(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="The run's folder, such as runs/maze2d.")],
) -> None:
    """Make a run's report.html and report.md anew from its folder, also while it runs or after it was cut off."""
    write_pages(run_dir)
    typer.echo(f"report: {run_dir / HTML}, {run_dir / MARKDOWN}")


def write_pages(folder: Path) -> None:
    """Write both, each whole or not at all.

    Raises:
        UserError: there is no run.
        OSError: they cannot be written.
    """
    run = gather(folder)
    write_text(folder / HTML, as_html(run))
    write_text(folder / MARKDOWN, as_markdown(run))


def leave_pages(folder: Path) -> None:
    """The same, at the end of a run, whose outcome it does not change."""
    try:
        write_pages(folder)
    except (TandemError, OSError) as problem:
        log.warning("the report could not be written: %s; `tandem report %s` makes it", problem, folder)


def as_html(run: Summary) -> str:
    """One file that fetches nothing."""
    return _environment(html=True).get_template("report.html.j2").render(_content(run))


def as_markdown(run: Summary) -> str:
    """For terminals, reviews and diffs."""
    text = _environment(html=False).get_template("report.md.j2").render(_content(run))
    lines = [line.rstrip() for line in text.splitlines()]
    kept = [line for index, line in enumerate(lines) if line or index == 0 or lines[index - 1]]
    return "\n".join(kept).strip() + "\n"


def _content(run: Summary) -> dict[str, Any]:
    first = run.sessions[0].began if run.sessions else None
    return {
        "run": run,
        "began": first,
        "last": run.sessions[-1].ended if run.sessions else None,
        "deaths": [death for session in run.sessions if session.ended for death in session.ended.deaths],
        "commands": commands(run),
    }


def commands(run: Summary) -> str:
    """What to type for the same run again: at the same commit, in the same folder, as at the first start."""
    if not run.sessions:
        return ""
    began = run.sessions[0].began
    commit = began.code.partition("+")[2]
    lines = [f"cd {shlex.quote(began.folder)}"]
    if commit:
        dirty = "  # with changes that were not committed" if commit.endswith("-dirty") else ""
        lines.append(f"git checkout {shlex.quote(commit.removesuffix('-dirty'))}{dirty}")
    return "\n".join([*lines, began.command or "# the command was not kept; config.yaml has all settings"])


@cache
def _environment(html: bool) -> Environment:
    made = Environment(
        loader=PackageLoader("tandem_controller"),
        autoescape=html,
        undefined=StrictUndefined,
        trim_blocks=html,
    )
    made.filters.update(
        interval=_interval,
        p=lambda value: "" if value is None else f"{value:.3g}",
        when=lambda at: f"{datetime.fromtimestamp(at).astimezone():%Y-%m-%d %H:%M:%S}",
        ending=_ending if html else lambda session: _line(_ending(session)),
        svg=lambda chart: Markup(svg(chart)),
        line=_line,
        extremes=_extremes,
        fenced=_fenced,
    )
    return made


def _interval(rate: tuple[float, float, float] | None) -> str:
    return "" if rate is None else f"{rate[0]:.1%} [{100 * rate[1]:.1f}, {100 * rate[2]:.1f}]"


def _ending(session: Session) -> str:
    ended = session.ended
    if ended is None:
        return "not ended, or killed"
    return f"{ended.how} at step {ended.version}" + (f": {ended.why}" if ended.why else "")


def _line(text: object) -> str:
    """Text in Markdown: one line, in which nothing is markup."""
    return "".join(f"\\{c}" if c in SPECIAL else c for c in one_line(str(text)))


def _extremes(series: Series) -> str:
    values = [value for _, value in series.points]
    short = [value for _, value in thinned(series.points, SPARK)]
    cells = (values[0], values[-1], min(values), max(values))
    return "".join(f"| {value:.4g} " for value in cells) + f"| {sparkline(short, min(short), max(short))} |"


def _fenced(text: str) -> str:
    fence = "~~~"
    while fence in text:
        fence += "~"
    return f"{fence}sh\n{text}\n{fence}"
