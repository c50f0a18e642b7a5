"""What a run leaves for people: tables, report.json, a learning curve, one maze before and after."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import matplotlib
import numpy as np
from numpy.typing import NDArray
from PIL import Image
from rich.console import Console
from rich.table import Table

from tandem.config import Config
from tandem.envs import make
from tandem.types import Trajectory, TrajectoryGroup
from tandem_controller.evaluate import FIXED_GREEDY, SuiteResult, as_json
from tandem_controller.run_dir import RunDir, write_json

matplotlib.use("Agg")
from matplotlib import pyplot

Results = Mapping[str, tuple[SuiteResult, list[TrajectoryGroup]]]
FRAME_MS = 350
BEFORE = "eval-before.json"


def print_suites(console: Console, title: str, results: Results) -> None:
    """A table of solve rates; nothing for no results."""
    if not results:
        return
    table = Table(title=f"solve rate {title}", title_justify="left")
    for column in ("suite", "solved", "rate", "95% interval", "turns", "unparsed"):
        table.add_column(column, justify="left" if column == "suite" else "right", no_wrap=True)
    for row, _ in results.values():
        interval = f"{row.low:.1%} .. {row.high:.1%}"
        shares = (f"{row.rate:.1%}", interval, f"{row.mean_turns:.1f}", f"{row.parse_failures:.1%}")
        table.add_row(row.suite, f"{row.solved}/{row.episodes}", *shares)
    console.print(table)
    if failed := sum(row.failed_episodes for row, _ in results.values()):
        console.print(
            f"{failed} of these episodes failed in engine or environment and count as unsolved", highlight=False
        )


def print_phases(console: Console, run: RunDir, seconds: Mapping[str, float]) -> None:
    """Wall time by phase, and where the files are."""
    phases = {**seconds, **_training_phases(run)}
    table = Table(title="wall time", title_justify="left")
    table.add_column("phase")
    table.add_column("seconds", justify="right")
    for name, value in phases.items():
        table.add_row(name, f"{value:.1f}")
    table.add_row("all", f"{sum(seconds.values()):.1f}")
    console.print(table)
    console.print(f"report, curve and pictures: {run.path}", highlight=False)


def write(run: RunDir, config: Config, before: Results, after: Results, seconds: Mapping[str, float]) -> None:
    """report.json, learning-curve.png and, where a task was learned, before-after.gif."""
    started = (
        json.loads((run.path / BEFORE).read_text()) if (run.path / BEFORE).exists() else {}
    )  # also of a resumed run
    report = {
        "run": config.run.name,
        "seed": config.run.seed,
        "before": started,
        "after": as_json(after),
        "seconds": {**seconds, **_training_phases(run)},
        "steps": len(run.rows()),
    }
    write_json(run.path / "report.json", report)
    learning_curve(run.rows(), started.get(FIXED_GREEDY, {}).get("rate"), run.path / "learning-curve.png")
    if pair := _learned(before, after):
        animation(config, *pair, run.path / "before-after.gif")


def learning_curve(rows: list[dict], start: float | None, path: Path) -> None:
    """Sampled solve rate of the training tasks, and greedy of the fixed set (`start`: before training), over steps."""
    figure, axes = pyplot.subplots(figsize=(7, 4), dpi=120)
    axes.plot(
        [row["version"] for row in rows],
        [row["rollout/solve_rate"] for row in rows],
        label="training tasks, sampled",
        alpha=0.6,
    )
    points = [] if start is None else [(0, start)]
    points += [(row["version"], row["eval_solve_rate"]) for row in rows if "eval_solve_rate" in row]
    if points:
        axes.plot(*zip(*points, strict=True), "o-", label="fixed set, greedy")
    axes.axhline(0.95, color="grey", linewidth=0.8, linestyle="--", label="95%")
    axes.set(xlabel="optimizer step", ylabel="solve rate", ylim=(0, 1.02))
    axes.legend(loc="lower right")
    axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)


def animation(config: Config, seed: int, before: Trajectory, after: Trajectory, path: Path) -> None:
    """One task played twice, side by side: before training on the left, after on the right."""
    left, right = replay(config, seed, before), replay(config, seed, after)
    if not left or not right:
        return  # a text game has nothing to show
    length = max(len(left), len(right))
    scale = max(1, 256 // left[0].shape[0])

    def frame(index: int) -> Image.Image:
        pair = [frames[min(index, len(frames) - 1)] for frames in (left, right)]
        gap = np.full((pair[0].shape[0], 8, 3), 255, np.uint8)
        joined = np.concatenate([pair[0], gap, pair[1]], axis=1)
        return Image.fromarray(joined.repeat(scale, axis=0).repeat(scale, axis=1))

    first, *rest = [frame(index) for index in range(length)]
    first.save(
        path, save_all=True, append_images=[*rest, rest[-1], rest[-1]] if rest else [], duration=FRAME_MS, loop=0
    )


def replay(config: Config, seed: int, trajectory: Trajectory) -> list[NDArray[np.uint8]]:
    """The frames of an episode, [H, W, 3] each, the last one included: played again from its seed and completions."""
    env = make(config.env.id)
    observations = [env.reset(seed), *(env.step(turn.text).observation for turn in trajectory.turns)]
    env.close()
    return [observation.images[0] for observation in observations if observation.images]


def _learned(before: Results, after: Results) -> tuple[int, Trajectory, Trajectory] | None:
    """The longest episode that was failed before and is solved after, with its seed."""
    if FIXED_GREEDY not in before or FIXED_GREEDY not in after:
        return None
    failed = {g.seed: g.trajectories[0] for g in before[FIXED_GREEDY][1] if not g.trajectories[0].solved}
    pairs = [
        (g.seed, failed[g.seed], g.trajectories[0])
        for g in after[FIXED_GREEDY][1]
        if g.seed in failed and g.trajectories[0].solved
    ]
    return max(pairs, key=lambda pair: len(pair[2].turns), default=None)


def _training_phases(run: RunDir) -> dict[str, float]:
    totals: dict[str, float] = {}
    for row in run.rows():
        for key, value in row.items():
            if key.startswith("seconds/"):
                name = f"training: {key.removeprefix('seconds/')}"
                totals[name] = totals.get(name, 0.0) + value
    return totals
