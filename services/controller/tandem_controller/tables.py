"""Evaluations as tables on a terminal, within 80 columns."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from tandem_controller.outcomes import Evaluation, Figures, compare, rows
from tandem_controller.suites import Suite


def print_evaluation(console: Console, title: str, evaluation: Evaluation) -> None:
    """Figures by suite, pass@k where there are samples, and a line on what failed."""
    found = rows(evaluation.results)
    if not found:
        return
    columns = ("suite", "solved", "rate", "95% interval", "turns", "path", "unparsed", "walls")
    _print(console, f"solve rate {title}", columns, [_cells(suite, row) for suite, row in found])
    if sampled := [(suite, row) for suite, row in found if row.pass_at]:
        ks = sorted({k for _, row in sampled for k in row.pass_at})
        cells = [(label(s), *(f"{row.pass_at[k]:.1%}" if k in row.pass_at else "" for k in ks)) for s, row in sampled]
        _print(console, "at least one of k solves it", ("suite", *(f"pass@{k}" for k in ks)), cells)
    singles = [row for suite, row in found if suite.env]
    if failed := sum(row.failed_episodes for row in singles):
        _say(console, f"{failed} of these episodes failed in engine or environment and count as unsolved")
    if full := sum(row.context_limit for row in singles):
        _say(console, f"{full} ended where rollout.engine.max_model_len held no further turn, and count as unsolved")


def print_paired(console: Console, first: Evaluation, second: Evaluation) -> None:
    """Both on the same tasks: who alone solves how many, and McNemar's p."""
    cells = []
    left_out = 0
    for mine, other in zip(first.results, second.results, strict=True):
        pair = compare(mine, other)
        counts = (pair.both, pair.only_first, pair.only_second, pair.neither)
        cells.append((label(mine.suite, alone=True), *map(str, counts), f"{pair.p_value:.3g}"))
        left_out += pair.left_out
    columns = ("suite", "both", "only first", "only second", "neither", "p")
    _print(console, f"the same tasks: {first.adapter} first, {second.adapter} second (McNemar, exact)", columns, cells)
    if left_out:
        _say(console, f"{left_out} pairs left out: one of their episodes failed in engine or environment")


def label(suite: Suite, alone: bool = False) -> str:
    """A row's name; a variant's is its options, `alone` where no row of its whole suite stands above."""
    variant = suite.env.partition("?")[2] or suite.env
    how = f"{suite.samples}x at T={suite.temperature:g}" if suite.temperature else "greedy"
    if not suite.env or suite.name not in ("styles", "larger"):
        return f"{suite.name} {how}"
    return f"{suite.name} {variant}" if alone else f"  {variant}"


def _cells(suite: Suite, row: Figures) -> tuple[str, ...]:
    return (
        label(suite),
        f"{row.solved}/{row.episodes}",
        f"{row.rate:.1%}",
        f"{100 * row.low:.1f}-{100 * row.high:.1f}",
        f"{row.mean_turns:.1f}",
        "" if row.path_optimality is None else f"{row.path_optimality:.2f}",
        f"{row.parse_failures:.1%}",
        "" if row.wall_hits is None else f"{row.wall_hits:.1%}",
    )


def _print(console: Console, title: str, columns: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="left" if column == "suite" else "right", no_wrap=True)
    for row in cells:
        table.add_row(*row)
    console.print(table)


def _say(console: Console, line: str) -> None:
    console.print(line, highlight=False, soft_wrap=True)
