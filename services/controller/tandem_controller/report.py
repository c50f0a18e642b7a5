"""What a run leaves for people: tables, report.json, a learning curve, one maze before and after."""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from pathlib import Path

import matplotlib
import numpy as np
from numpy.typing import NDArray
from PIL import Image
from rich.console import Console
from rich.table import Table

from tandem.config import Config
from tandem.storage.episode_index import INDEX, Entry, read_index
from tandem.storage.episodes import read_groups
from tandem.types import DataCorrupt, TrajectoryGroup
from tandem_controller.evaluate import headline
from tandem_controller.outcomes import Evaluation, figure_rows, figures, read_evaluation
from tandem_controller.phases import phases_of
from tandem_controller.recording import RECORDED
from tandem_controller.run_dir import RunDir, write_json
from tandem_controller.suites import FIXED

matplotlib.use("Agg")
from matplotlib import pyplot

FRAME_MS = 350
GAP = 8  # pixels between the two
GREEN, RED = (40, 160, 60), (200, 50, 50)
BEFORE = "eval-before.json"
REHEARSAL_TITLE = "a rehearsal: no model played"


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
    console.print(f"report: {run.path}", highlight=False, soft_wrap=True)
    if (run.path / RECORDED / INDEX).exists():
        console.print(f"its episodes: tandem view {run.path}", highlight=False, soft_wrap=True, markup=False)


def write(
    run: RunDir, config: Config, before: Evaluation | None, after: Evaluation, seconds: Mapping[str, float]
) -> None:
    """report.json and learning-curve.png."""
    report = {
        "run": config.run.name,
        "seed": config.run.seed,
        "engine": config.rollout.engine.kind,
        "before": figure_rows(before.results) if before else [],
        "after": figure_rows(after.results),
        "seconds": {**seconds, **_training_phases(run)},
        "steps": len(run.rows()),
    }
    write_json(run.path / "report.json", report)
    started = headline(before.results) if before else None
    title = REHEARSAL_TITLE if config.rollout.engine.kind == "simulated" else ""
    learning_curve(run.rows(), figures([started]).rate if started else None, run.path / "learning-curve.png", title)


def read_before(run: RunDir, console: Console) -> Evaluation | None:
    """The evaluation before training, of a run that goes on; None, with a line, where it cannot be read."""
    if not (run.path / BEFORE).exists():
        return None
    try:
        return read_evaluation(run.path / BEFORE)
    except DataCorrupt as problem:
        console.print(f"{problem}; the report goes without it", highlight=False, soft_wrap=True)
        return None


def learning_curve(rows: list[dict], start: float | None, path: Path, title: str = "") -> None:
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
    axes.set(xlabel="optimizer step", ylabel="solve rate", ylim=(0, 1.02), title=title)
    axes.legend(loc="lower right")
    axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)


def animate(run: RunDir, console: Console) -> None:
    """before-after.gif: the longest of the recorded tasks that was failed before training and is solved after it.

    Nothing where there is none, or none with images; a line where a recording is damaged.
    """
    folder = run.path / RECORDED
    if not (folder / INDEX).exists():
        return
    last = max((entry.label.version for entry in read_index(folder) if _of_headline(entry)), default=0)
    try:
        before, after = (_recorded(folder, version) for version in (0, last))
    except DataCorrupt as problem:
        console.print(f"{problem}; there is no before-after.gif", highlight=False, soft_wrap=True)
        return
    learned = [task for task, group in after.items() if task in before and _learned(before[task], group)]
    if learned:
        longest = max(learned, key=lambda task: len(_shown(after[task])))
        _side_by_side(_film(before[longest]), _film(after[longest]), run.path / "before-after.gif")


def _of_headline(entry: Entry) -> bool:
    return entry.label.suite == FIXED and not entry.label.temperature


def _recorded(folder: Path, version: int) -> dict[tuple[str, int], TrajectoryGroup]:
    """The headline's episodes under a version, by task."""
    found = read_groups(folder, lambda entry: _of_headline(entry) and entry.label.version == version)
    return {(group.env, group.seed): group for group in found}


def _learned(before: TrajectoryGroup, after: TrajectoryGroup) -> bool:
    was, now = before.trajectories[0], after.trajectories[0]
    return bool(now.solved and not was.solved and not was.stop_reason.failed and _shown(before) and _shown(after))


def _shown(group: TrajectoryGroup) -> list[str]:
    """The newest image of each prompt, by name."""
    return [turn.images[-1] for turn in group.trajectories[0].turns if turn.images]


def _film(group: TrajectoryGroup) -> list[NDArray[np.uint8]]:
    """The pictures [H, W, 3] of an episode; what its last move led to is in none, so a frame says how it went."""
    pictures = [np.asarray(Image.open(BytesIO(group.images[name])).convert("RGB")) for name in _shown(group)]
    end = pictures[-1].copy()
    edge = max(1, min(end.shape[:2]) // 16)
    end[:edge] = end[-edge:] = end[:, :edge] = end[:, -edge:] = GREEN if group.trajectories[0].solved else RED
    return [*pictures, end]


def _side_by_side(left: list[NDArray[np.uint8]], right: list[NDArray[np.uint8]], path: Path) -> None:
    height, width = (max(picture.shape[axis] for picture in (*left, *right)) for axis in (0, 1))
    length, scale = max(len(left), len(right)), max(1, 256 // height)

    def frame(index: int) -> Image.Image:
        canvas = np.full((height, 2 * width + GAP, 3), 255, np.uint8)
        for film, start in ((left, 0), (right, width + GAP)):
            picture = film[min(index, len(film) - 1)]
            canvas[: picture.shape[0], start : start + picture.shape[1]] = picture
        return Image.fromarray(canvas.repeat(scale, axis=0).repeat(scale, axis=1))

    first, *rest = [frame(index) for index in range(length)]
    times = [FRAME_MS] * (length - 1) + [3 * FRAME_MS]
    first.save(path, save_all=True, append_images=rest, duration=times, loop=0)


def _training_phases(run: RunDir) -> dict[str, float]:
    totals: dict[str, float] = {}
    for row in run.rows():
        for phase, value in phases_of(row).items():
            name = f"training: {phase}"
            totals[name] = totals.get(name, 0.0) + value
    return totals
