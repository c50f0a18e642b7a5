"""What a run leaves for people, a resumed one too: it reads what was evaluated and recorded before."""

import hashlib
import io
import json
from collections.abc import Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from replicas import episode, turn
from rich.console import Console

from tandem.config import Config
from tandem.storage.episode_lines import Beside, Label
from tandem.storage.episodes import EPISODES, EVAL, EpisodeWriter
from tandem.types import StopReason, Trajectory, TrajectoryGroup
from tandem_controller import report
from tandem_controller.outcomes import Evaluation, as_json, suite_result
from tandem_controller.run_dir import RunDir, write_json
from tandem_controller.suites import plan

CONFIG = Config.model_validate({"model": {"path": "x"}, "env": {"window": 1}, "eval": {"fixed": 3, "heldout": 2}})
SUITE = plan(CONFIG, ["fixed64"]).suites[0]


def evaluation(version: int, solved: bool) -> Evaluation:
    groups = [TrajectoryGroup("g", SUITE.env, seed, version, (episode(0, solved),), {}) for seed in SUITE.seeds]
    return Evaluation(f"v{version}", "", version, 1, 1, 8, (suite_result(SUITE, groups),))


def filmed(seed: int, solved: bool, shades: Sequence[int], height: int = 8, width: int = 8) -> TrajectoryGroup:
    """An episode that shows plain grey pictures, of an environment that nobody can import."""
    images = dict(png(np.full((height, width, 3), shade, np.uint8)) for shade in shades)
    turns = tuple(replace(turn(), images=(name,)) for name in images)
    trajectory = Trajectory(0, turns, StopReason.TERMINATED if solved else StopReason.TURN_LIMIT, float(solved))
    return TrajectoryGroup(f"g{seed}", "no.such.module:Env", seed, 0, (trajectory,), images)


def png(pixels: np.ndarray) -> tuple[str, bytes]:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "png")
    return hashlib.sha256(file.getvalue()).hexdigest(), file.getvalue()


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    found = RunDir(tmp_path)
    for version in (1, 2):
        found.log({"version": version, "rollout/solve_rate": 0.5, "seconds/train": 2.0, "seconds/train/pack": 0.5})
    return found


def record(run: RunDir, before: Sequence[TrajectoryGroup], after: Sequence[TrajectoryGroup]) -> None:
    writer = EpisodeWriter(run.path / "episodes")
    for version, groups in ((0, before), (2, after)):
        label = Label(SUITE.name, version, SUITE.temperature)
        writer.anew(label, "no.such.module:Env")
        writer.write(groups, Beside(label), EVAL)
    writer.write(after, Beside(Label(SUITE.name, 9, 1.0)), EVAL)  # sampled: not the headline


def test_a_resumed_run_reports_what_was_before(run: RunDir) -> None:
    write_json(run.path / report.BEFORE, as_json(evaluation(0, False)))
    before = report.read_before(run, Console(file=StringIO()))
    report.write(run, CONFIG, before, evaluation(2, True), {"training": 4.0})
    written = json.loads((run.path / "report.json").read_text())
    assert (written["before"][0]["rate"], written["after"][0]["rate"]) == (0.0, 1.0)
    assert written["seconds"] == {"training": 4.0, "training: train": 4.0}
    assert (run.path / "learning-curve.png").stat().st_size > 1000


def test_a_run_without_a_before_and_one_with_a_damaged_one(run: RunDir) -> None:
    heard = StringIO()
    assert report.read_before(run, Console(file=heard)) is None
    assert heard.getvalue() == ""
    (run.path / report.BEFORE).write_text("{")
    assert report.read_before(run, Console(file=heard)) is None
    assert "the report goes without it" in heard.getvalue()
    report.write(run, CONFIG, None, evaluation(2, True), {})
    assert json.loads((run.path / "report.json").read_text())["before"] == []


def test_the_longest_task_learned_is_drawn_from_what_was_recorded(run: RunDir) -> None:
    """Whatever the size of pictures; at the end, which no prompt shows, a border says how it went."""
    record(
        run,
        [filmed(1, True, [10]), filmed(2, False, [10, 20]), filmed(3, False, [30, 40], height=16)],
        [filmed(1, True, [10] * 9), filmed(2, True, [50]), filmed(3, True, [60, 70, 80], width=32)],
    )
    report.animate(run, Console(file=StringIO()))
    with Image.open(run.path / "before-after.gif") as picture:
        assert (picture.width, picture.height) == (16 * (32 + 8 + 32), 16 * 16)
        assert getattr(picture, "n_frames", 1) == 3 + 1
        seen = []
        for index in range(4):
            picture.seek(index)
            pixels = np.asarray(picture.convert("RGB"), dtype=int)
            seen.append((pixels[64, 64].tolist(), pixels[64, 16 * 40 + 64].tolist()))
        assert [(left[0], right[0]) for left, right in seen] == [(30, 60), (40, 70), (40, 80), (40, 80)]
        assert pixels[100, 200].tolist() == [255, 255, 255], "beside the narrower picture"
        red, green = pixels[4, 4], pixels[4, 16 * 40 + 4]
        assert red[0] > 2 * red[1] and green[1] > 2 * green[0]


@pytest.mark.parametrize("solved", [True, False])
def test_where_nothing_was_learned_or_seen_nothing_is_drawn(run: RunDir, solved: bool) -> None:
    heard = StringIO()
    report.animate(run, Console(file=heard))  # no fixed set was played
    record(run, [filmed(1, False, [])], [filmed(1, True, [])])
    report.animate(run, Console(file=heard))
    record(run, [filmed(1, solved, [1])], [filmed(1, solved, [2])])
    report.animate(run, Console(file=heard))
    assert not (run.path / "before-after.gif").exists()
    assert heard.getvalue() == ""


def test_a_damaged_recording_costs_the_picture_not_the_report(run: RunDir) -> None:
    record(run, [filmed(1, False, [1])], [filmed(1, True, [2])])
    (run.path / "episodes" / EVAL / EPISODES).write_text("{")
    heard = StringIO()
    report.animate(run, Console(file=heard))
    assert "cut short" in heard.getvalue() and "no before-after.gif" in heard.getvalue()
