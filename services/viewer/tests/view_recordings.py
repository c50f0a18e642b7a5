"""Recordings made by the real writer: a maze that is learned, and whatever a model may say."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, ImageDraw

from tandem.storage.episode_lines import TRAIN, Beside, Label
from tandem.storage.episodes import EVAL, EpisodeWriter, train_part
from tandem.types import FinishReason, StopReason, Trajectory, TrajectoryGroup, Turn

ENV = "maze2d:tiny"
HOSTILE = "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'>"
BACKWARDS = "\u202e\u05e9\u05dc\u05d5\u05dd reversed \u2066\u2067"


@dataclass(frozen=True, slots=True)
class Said:
    """An episode to record: its answers, and how it ended."""

    answers: Sequence[str]
    solved: bool
    stop: StopReason | None = None
    parsed: bool = True


def picture(seed: int, step: int) -> tuple[str, bytes]:
    image = Image.new("RGB", (48, 48), "white")
    draw = ImageDraw.Draw(image)
    draw.rectangle((34, 34, 45, 45), fill="#d92b2b")
    draw.line((16, 0, 16, 8 + seed * 7 % 32), fill="#666666", width=2)
    draw.ellipse((2 + 4 * step, 2 + 3 * step, 12 + 4 * step, 12 + 3 * step), fill="#1f4fd8")
    file = io.BytesIO()
    image.save(file, "png")
    return hashlib.sha256(file.getvalue()).hexdigest(), file.getvalue()


def trajectory(member: int, seed: int, said: Said, version: int, images: dict[str, bytes]) -> Trajectory:
    turns = []
    for step, text in enumerate(said.answers):
        name, png = picture(seed, step)
        images[name] = png
        ids = tuple(range(5, 5 + max(1, len(text.split()))))
        reward = float(said.solved and step == len(said.answers) - 1)
        logprobs = tuple(-0.05 - 0.9 * (i % 3) for i in range(len(ids)))
        finish = FinishReason.STOP if said.parsed else FinishReason.LENGTH
        turns.append(Turn((1, 2), ids, logprobs, (name,), version, text, "Moved.", reward, finish, said.parsed))
    stop = said.stop or (StopReason.TERMINATED if said.solved else StopReason.TURN_LIMIT)
    error = "ValueError: <b>no</b>" if stop.failed else ""
    return Trajectory(member, tuple(turns), stop, float(said.solved), error, {"shortest": 4.0})


def group(seed: int, version: int, members: Sequence[Said]) -> TrajectoryGroup:
    images: dict[str, bytes] = {}
    played = tuple(trajectory(m, seed, said, version, images) for m, said in enumerate(members))
    return TrajectoryGroup(f"v{version}-t{seed}", ENV, seed, version, played, images, 0.5)


class Run:
    """A run's folder that is written to as a run does."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.writer = EpisodeWriter(path / "episodes")
        self.texts: dict[tuple[int, ...], list[str]] = {}

    def step(self, version: int, groups: Sequence[TrajectoryGroup]) -> None:
        """A training step."""
        weights = {g.group_id: {t.member: 0.9 if t.solved else -0.9 for t in g.trajectories} for g in groups}
        for each in groups:
            self._write([each], Label(TRAIN, version, 1.0), train_part(version), weights)

    def evaluation(self, version: int, groups: Sequence[TrajectoryGroup]) -> None:
        """The fixed set, greedy."""
        self.writer.anew(Label("fixed64", version, 0.0), ENV)
        for each in groups:
            self._write([each], Label("fixed64", version, 0.0), EVAL, {})

    def _write(self, groups: list[TrajectoryGroup], label: Label, part: str, weights: dict) -> None:
        said = iter([turn.text for g in groups for t in g.trajectories for turn in t.turns])

        def spell(ids: Sequence[int]) -> list[str]:
            words = next(said).split(" ")
            pieces = [words[0], *(f" {word}" for word in words[1:])][: len(ids)]
            return pieces + [""] * (len(ids) - len(pieces))

        self.writer.write(groups, Beside(label, weights, spell), part)


def maze(seed: int, version: int, solves: bool) -> TrajectoryGroup:
    """One greedy episode."""
    answers = ["right", "down"] if solves else ["up"] * 6
    return group(seed, version, [Said(answers, solves)])


def mixed(seed: int, version: int) -> TrajectoryGroup:
    """Four members of which one or two get there; one says nothing that could be understood."""
    return group(
        seed,
        version,
        [
            Said(["right", "down now please"], True),
            Said(["up", "up", "up"], False),
            Said(["right", "right"], seed % 2 == 0),
            Said([f"well, {HOSTILE}"], False, parsed=False),
        ],
    )


def learned_run(path: Path) -> Run:
    """Three versions, tasks 1 to 6 evaluated under the first and the last: 2 and 4 are newly solved, 6 newly failed."""
    run = Run(path)
    before, after = {1, 6}, {1, 2, 4}
    run.evaluation(0, [maze(seed, 0, seed in before) for seed in range(1, 7)])
    for version in range(3):
        run.step(version, [mixed(100 + 10 * version + n, version) for n in range(3)])
    broken = Said(["right"], False, StopReason.ENV_ERROR)
    run.step(3, [group(130, 3, [broken, Said(["right", "down"], True)])])
    run.evaluation(3, [maze(seed, 3, seed in after) for seed in range(1, 7)])
    return run
