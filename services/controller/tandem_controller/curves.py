"""Curves of a run's figures over its steps, as SVG that takes its colours from the page it stands in."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

WIDTH, HEIGHT = 520, 220
LEFT, RIGHT, TOP, BOTTOM = 56, 12, 12, 26  # margins
MOST = 400  # points drawn of a series; of more, means of neighbours
TICKS = 4
GREEDY = "fixed set, greedy"

Row = Mapping[str, Any]
Read = Callable[[Row], float | None]


@dataclass(frozen=True, slots=True)
class Series:
    """Points (policy version, value), in order."""

    name: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Chart:
    """Series in one pair of axes; `low` and `high` are what the vertical one must span at least."""

    title: str
    series: tuple[Series, ...]
    low: float | None = None
    high: float | None = None


def key(name: str) -> Read:
    """A figure of that name."""

    def read(row: Row) -> float | None:
        value = row.get(name)
        return float(value) if isinstance(value, int | float) and math.isfinite(value) else None

    return read


def ratio(above: str, below: str) -> Read:
    """One figure by another."""

    def read(row: Row) -> float | None:
        over, under = key(above)(row), key(below)(row)
        return over / under if over is not None and under else None

    return read


# What is drawn: title, series by name, and what the axis spans at least.
DRAWN: tuple[tuple[str, Mapping[str, Read], float | None, float | None], ...] = (
    (
        "Solve rate",
        {"training tasks, sampled": key("rollout/solve_rate"), GREEDY: key("eval_solve_rate")},
        0.0,
        1.0,
    ),
    ("Reward (mean return)", {"training tasks": key("rollout/return_mean")}, None, None),
    ("Length (turns an episode)", {"training tasks": ratio("rollout/turns", "rollout/episodes")}, 0.0, None),
    ("Loss", {"loss": key("loss")}, None, None),
    ("KL", {"to the rollout policy": key("approx_kl"), "to the base model": key("ref_kl")}, 0.0, None),
    ("Entropy (nats a token)", {"entropy": key("entropy")}, 0.0, None),
    (
        "Logprob gap between engine and learner (nats)",
        {"mean": key("rollout_learner_logprob_gap_mean"), "largest": key("rollout_learner_logprob_gap_max")},
        0.0,
        None,
    ),
    (
        "Staleness (policy versions)",
        {"mean": key("rollout/staleness_mean"), "largest": key("rollout/staleness_max")},
        0.0,
        1.0,
    ),
    ("Gradient norm", {"before clipping": key("grad_norm")}, 0.0, None),
    ("Learning rate", {"lr": key("lr")}, 0.0, None),
    (
        "Seconds by phase",
        {name: key(f"seconds/{name}") for name in ("generate", "train", "sync", "eval", "data")},
        0.0,
        None,
    ),
)


def charts(rows: Sequence[Row], start: float | None = None, end: float | None = None) -> tuple[Chart, ...]:
    """All that these rows of metrics.jsonl have figures for; `start` and `end` are the fixed set's solve rate before
    and after training."""
    found = list[Chart]()
    for title, reads, low, high in DRAWN:
        series = list[Series]()
        for name, read in reads.items():
            points = [(float(row["version"]), value) for row in rows if (value := read(row)) is not None]
            if name == GREEDY:
                points = _between(start, points, end, rows)
            if points:
                series.append(Series(name, tuple(points)))
        if series:
            found.append(Chart(title, tuple(series), low, high))
    return tuple(found)


def _between(
    start: float | None, points: list[tuple[float, float]], end: float | None, rows: Sequence[Row]
) -> list[tuple[float, float]]:
    last = max((float(row["version"]) for row in rows), default=0.0)
    first = [] if start is None else [(0.0, start)]
    final = [] if end is None or last in {0.0, *(x for x, _ in points)} else [(last, end)]
    return [*first, *points, *final]


def svg(chart: Chart) -> str:
    """The chart; lines have the classes `s0`, `s1`, ..., axes `axis`, text `tick`."""
    series = [thinned(item.points) for item in chart.series]
    xs = [x for points in series for x, _ in points]
    ys = [y for points in series for _, y in points] + [y for y in (chart.low, chart.high) if y is not None]
    left, right = min(xs), max(xs)
    ticks = _ticks(min(ys), max(ys))
    low, high = ticks[0], ticks[-1]

    def at(x: float, y: float) -> str:
        across = (x - left) / (right - left) if right > left else 0.5
        return (
            f"{LEFT + across * (WIDTH - LEFT - RIGHT):.1f},"
            f"{HEIGHT - BOTTOM - (y - low) / (high - low) * (HEIGHT - TOP - BOTTOM):.1f}"
        )

    title = escape(chart.title)
    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title}"><title>{title}</title>']
    for tick in ticks:
        (x1, y), (x2, _) = at(left, tick).split(","), at(right, tick).split(",")
        x1, x2 = (x1, x2) if right > left else (str(LEFT), str(WIDTH - RIGHT))
        parts.append(f'<line class="axis" x1="{x1}" y1="{y}" x2="{x2}" y2="{y}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 6}" y="{float(y) + 4:.1f}" text-anchor="end">{tick:.4g}</text>')
    for x, anchor in ((left, "start"), (right, "end")) if right > left else ((left, "middle"),):
        across = at(x, low).partition(",")[0]
        parts.append(f'<text class="tick" x="{across}" y="{HEIGHT - 8}" text-anchor="{anchor}">{x:.0f}</text>')
    for index, points in enumerate(series):
        line = " ".join(at(x, y) for x, y in points)
        parts.append(f'<polyline class="s{index}" points="{line}"/>')
        if len(points) <= 40:
            parts += [_dot(index, at(x, y), f"step {x:.0f}: {y:.4g}") for x, y in points]
    return "".join((*parts, "</svg>"))


def thinned(points: Sequence[tuple[float, float]], most: int = MOST) -> list[tuple[float, float]]:
    """At most so many points: each the mean of equally many neighbours."""
    size = math.ceil(len(points) / most)
    if size <= 1:
        return list(points)
    parts = [points[start : start + size] for start in range(0, len(points), size)]
    return [(sum(x for x, _ in part) / len(part), sum(y for _, y in part) / len(part)) for part in parts]


def _dot(index: int, where: str, what: str) -> str:
    x, _, y = where.partition(",")
    return f'<circle class="s{index}" cx="{x}" cy="{y}" r="2.5"><title>{escape(what)}</title></circle>'


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers that span both."""
    size = max(abs(low), abs(high))
    span = high - low if high - low > 1e-9 * size else size or 1.0
    power = 10.0 ** math.floor(math.log10(span / TICKS))
    step = next(power * by for by in (1, 2, 5, 10) if power * by >= span / TICKS * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [index * step for index in range(first, max(last, first + 1) + 1)]
