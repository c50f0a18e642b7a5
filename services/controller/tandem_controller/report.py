"""What a run leaves for people: tables, report.json, a learning curve, one maze before and after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
import numpy as np
from numpy.typing import NDArray
from PIL import Image
from rich.console import Console
from rich.table import Table

from tandem.config import Config
from tandem.envs import make
from tandem.types import DataCorrupt
from tandem_controller.evaluate import headline
from tandem_controller.outcomes import Evaluation, Outcome, SuiteResult, figure_rows, figures, read_evaluation
from tandem_controller.run_dir import RunDir, write_json

matplotlib.use("Agg")
from matplotlib import pyplot

FRAME_MS = 350
BEFORE = "eval-before.json"


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


def write(
    run: RunDir, config: Config, before: Evaluation | None, after: Evaluation, seconds: Mapping[str, float]
) -> None:
    """report.json, learning-curve.png and, where a task was learned, before-after.gif."""
    report = {
        "run": config.run.name,
        "seed": config.run.seed,
        "before": figure_rows(before.results) if before else [],
        "after": figure_rows(after.results),
        "seconds": {**seconds, **_training_phases(run)},
        "steps": len(run.rows()),
    }
    write_json(run.path / "report.json", report)
    started, ended = (headline(evaluation.results) if evaluation else None for evaluation in (before, after))
    learning_curve(run.rows(), figures([started]).rate if started else None, run.path / "learning-curve.png")
    if started and ended and (pair := _learned(started, ended)):
        animation(ended.suite.env, *pair, run.path / "before-after.gif")


def read_before(run: RunDir, console: Console) -> Evaluation | None:
    """The evaluation before training, of a run that goes on; None, with a line, where it cannot be read."""
    if not (run.path / BEFORE).exists():
        return None
    try:
        return read_evaluation(run.path / BEFORE)
    except DataCorrupt as problem:
        console.print(f"{problem}; the report goes without it", highlight=False, soft_wrap=True)
        return None


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


def animation(env_id: str, seed: int, before: Outcome, after: Outcome, path: Path) -> None:
    """One task played twice, side by side: before training on the left, after on the right; nothing without images."""
    left, right = replay(env_id, seed, before.texts), replay(env_id, seed, after.texts)
    if not left or not right:
        return
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


def replay(env_id: str, seed: int, texts: Sequence[str]) -> list[NDArray[np.uint8]]:
    """The frames of an episode, [H, W, 3] each, the last one included: played again from its seed and completions."""
    env = make(env_id)
    observations = [env.reset(seed), *(env.step(text).observation for text in texts)]
    env.close()
    return [observation.images[-1] for observation in observations if observation.images]


def _learned(before: SuiteResult, after: SuiteResult) -> tuple[int, Outcome, Outcome] | None:
    """The longest episode that was failed before and is solved after, with its seed."""
    failed = {
        seed: episodes[0]
        for seed, episodes in zip(before.suite.seeds, before.episodes, strict=True)
        if not episodes[0].solved and before.suite.env == after.suite.env
    }
    pairs = [
        (seed, failed[seed], episodes[0])
        for seed, episodes in zip(after.suite.seeds, after.episodes, strict=True)
        if seed in failed and episodes[0].solved
    ]
    return max(pairs, key=lambda pair: pair[2].turns, default=None)


def _training_phases(run: RunDir) -> dict[str, float]:
    totals: dict[str, float] = {}
    for row in run.rows():
        for key, value in row.items():
            if key.startswith("seconds/"):
                name = f"training: {key.removeprefix('seconds/')}"
                totals[name] = totals.get(name, 0.0) + value
    return totals
