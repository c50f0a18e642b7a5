"""A run at a glance, as `tandem train` on a terminal and `tandem top` show it.

run        maze2d-cpu  step 12 of 32  38%  about 4 min left  ━━━━━━━━━━━──────────────────
now        generate for 4 s, 21 of 32 groups
last step  ███████████████████████████▓▓▒
           █ generate 12.1 s 90%  ▓ train 1.2 s 9%  ▒ sync 0.1 s 1%
solved      81.2% ▃▂▃▄▄▅▆▆▇█  93.8% greedy on the fixed set, step 8
reward      0.812 ▁▁▂▃▄▅▆▇▇█
speed      19.1 episodes/s  139.2 turns/s  13.4 s a step
rollout    0-1 serving v12
learner    0-1 serving v12
problems   21:14:03 rollout 1 (generation 0) at 127.0.0.1:4711 died: killed by SIGKILL
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import groupby

from rich.console import Group, RenderableType
from rich.text import Text

from tandem.types import MemberStatus, Role, RunStatus, StepFigures
from tandem_controller.status_tables import QUIET_S, ago

STYLES: Mapping[str, str] = {"generate": "cyan", "train": "green", "sync": "magenta", "eval": "yellow", "data": "cyan"}
OTHER_STYLE = "red"
BLOCKS, PLAIN_BLOCKS = "█▓▒░▚▞", "#=+-o:"  # of the phases in their order: they differ without colours, too
SPARKS, PLAIN_SPARKS = "▁▂▃▄▅▆▇█", "_.-~=+*#"
SPARK, BAR = 24, 30  # most characters
LABEL = 11  # characters of the first column
LINES = 3  # of waits, of what is pending, of problems
AVERAGED = 16  # steps that time left and speed are taken from
NARROW = 60  # columns, below which there are no bars


def view(status: RunStatus, now: float, width: int = 80, plain: bool = False) -> RenderableType:
    """Lines for `width` columns, none of which wraps. `now` is in Unix seconds; `plain` keeps to ASCII."""
    rows = [
        ("run", _progress(status, width, plain)),
        ("now", _now(status)),
        *_last_step(status.recent[-1:], width, plain),
        *_figures(status.recent, plain),
        *_members(status.members, now),
        *_lines("waiting", status.waits if status.quiet_s >= QUIET_S else ()),
        *_lines("next step", status.pending),
        *_lines("problems", [f"{_clock(item.at)} {item.text}" for item in status.problems[-LINES:]], "yellow"),
    ]
    overflow = "crop" if plain else "ellipsis"
    lines = [
        Text(no_wrap=True, overflow=overflow).append(f"{label:{LABEL}}", "bold").append(text) for label, text in rows
    ]
    return Group(*lines)


def seconds_left(status: RunStatus) -> float | None:
    """Until the last step is made, should all take as long as the last ones did; None where there was none."""
    steps = status.recent[-AVERAGED:]
    if not steps:
        return None
    return sum(step.seconds for step in steps) / len(steps) * max(0, status.steps - status.version)


def sparkline(values: Sequence[float | None], low: float, high: float, plain: bool = False) -> str:
    """A character for each value, the lowest for `low` or less, the highest for `high` or more; a blank for None."""
    marks = PLAIN_SPARKS if plain else SPARKS
    scale = (len(marks) - 1) / (high - low) if high > low else 0.0
    return "".join(
        " " if value is None else marks[min(len(marks) - 1, max(0, round((value - low) * scale)))] for value in values
    )


def shares(seconds: Sequence[float], width: int) -> list[int]:
    """`width` characters divided in proportion, by largest remainders; all 0 where there is nothing to divide."""
    total = sum(seconds)
    if total <= 0:
        return [0] * len(seconds)
    exact = [width * value / total for value in seconds]
    whole = [int(value) for value in exact]
    by_rest = sorted(range(len(exact)), key=lambda index: whole[index] - exact[index])
    for index in by_rest[: width - sum(whole)]:
        whole[index] += 1
    return whole


def _progress(status: RunStatus, width: int, plain: bool) -> Text:
    share = min(1.0, status.version / max(1, status.steps))
    text = Text(f"{status.name}  step {status.version} of {status.steps}  {share:.0%}")
    if (left := seconds_left(status)) is not None and share < 1:
        text.append(f"  about {ago(left)} left")
    size = min(BAR, width - LABEL - len(text) - 2)
    if width >= NARROW and size > 0:
        done = round(share * size)
        text.append("  ").append(("=" if plain else "━") * done, "green").append(
            ("." if plain else "─") * (size - done)
        )
    return text


def _now(status: RunStatus) -> Text:
    text = Text(f"{status.phase} for {ago(status.phase_s)}", STYLES.get(status.phase, ""))
    if status.phase == "generate" and status.groups_wanted:
        text.append(f", {status.groups} of {status.groups_wanted} groups")
    if status.quiet_s >= QUIET_S:
        text.append(f"; nothing has progressed for {ago(status.quiet_s)}", "yellow")
    return text


def _last_step(steps: Sequence[StepFigures], width: int, plain: bool) -> list[tuple[str, Text]]:
    phases = [item for step in steps for item in step.phases if item[1] > 0]
    total = sum(seconds for _, seconds in phases)
    if not total:
        return []
    blocks = PLAIN_BLOCKS if plain else BLOCKS
    bar, legend = Text(), Text()
    long = BAR if width >= NARROW else 0
    for index, ((name, seconds), size) in enumerate(zip(phases, shares([s for _, s in phases], long), strict=True)):
        block, style = blocks[index % len(blocks)], STYLES.get(name, OTHER_STYLE)
        bar.append(block * size, style)
        legend.append("  " if legend else "").append(block, style)
        legend.append(f" {name.replace('_', ' ')} {seconds:.1f} s {seconds / total:.0%}")
    label = "last step"
    return [(label, bar), ("", legend)] if long else [(label, legend)]


def _figures(steps: Sequence[StepFigures], plain: bool) -> list[tuple[str, Text]]:
    rows = [
        *_curve("solved", [step.solve_rate for step in steps], plain, percent=True),
        *_curve("reward", [step.reward for step in steps], plain),
    ]
    if not rows:  # of fine-tuning
        rows = _curve("loss", [step.loss for step in steps], plain)
    greedy = next((step for step in reversed(steps) if step.eval_solve_rate is not None), None)
    if greedy and rows:
        rows[0][1].append(f"  {greedy.eval_solve_rate:.1%} greedy on the fixed set, step {greedy.version}")
    counted = steps[-AVERAGED:]
    seconds = sum(step.seconds for step in counted)
    if seconds > 0:
        rate = f"{sum(step.episodes for step in counted) / seconds:.1f} episodes/s"
        turns = f"{sum(step.turns for step in counted) / seconds:.1f} turns/s"
        rows.append(("speed", Text(f"{rate}  {turns}  {seconds / len(counted):.1f} s a step")))
    return rows


def _curve(label: str, values: Sequence[float | None], plain: bool, percent: bool = False) -> list[tuple[str, Text]]:
    known = [value for value in values if value is not None]
    if not known:
        return []
    low, high = (0.0, 1.0) if percent else (min(known), max(known))
    last = f"{known[-1]:.1%}" if percent else f"{known[-1]:.4g}"
    return [(label, Text(f"{last:>6} ").append(sparkline(values[-SPARK:], low, high, plain), "cyan"))]


def _members(members: Sequence[MemberStatus], now: float) -> list[tuple[str, Text]]:
    """A row for each role; its members by what they do, the longest in that state first told how long."""
    rows = []
    for role in Role:
        found = sorted((m for m in members if m.member.identity.role is role), key=_doing)
        parts = []
        for (state, version), alike in groupby(found, key=_doing):
            those = list(alike)
            which = _ranges(sorted(m.member.identity.index for m in those))
            since = "" if state == "serving" else f" for {ago(now - min(m.since for m in those))}"
            parts.append(f"{which} {state}{since}" + (f" v{version}" if version >= 0 else ""))
        if parts:
            label = "store" if role is Role.CHECKPOINT_MANAGER else role.value
            rows.append((label, Text(", ".join(parts))))
    return rows


def _doing(status: MemberStatus) -> tuple[str, int]:
    return status.state, -1 if status.version is None else status.version


def _ranges(numbers: Sequence[int]) -> str:
    """0, 1, 2, 5 as `0-2,5`."""
    parts = list[list[int]]()
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ",".join(f"{part[0]}-{part[-1]}" if len(part) > 1 else f"{part[0]}" for part in parts)


def _lines(label: str, lines: Sequence[str], style: str = "") -> list[tuple[str, Text]]:
    return [("" if index else label, Text(line, style)) for index, line in enumerate(lines[:LINES])]


def _clock(at: float) -> str:
    return f"{datetime.fromtimestamp(at).astimezone():%H:%M:%S}"
