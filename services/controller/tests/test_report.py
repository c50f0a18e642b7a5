"""What a run leaves for people, a resumed one too: it reads what was evaluated before."""

import json
from io import StringIO
from pathlib import Path

import pytest
from PIL import Image
from replicas import turn
from rich.console import Console

from tandem.config import Config
from tandem.envs import make
from tandem.envs.registry import get_spec
from tandem.types import StopReason, Trajectory, TrajectoryGroup
from tandem_controller import report
from tandem_controller.outcomes import Evaluation, as_json, suite_result
from tandem_controller.run_dir import RunDir, write_json
from tandem_controller.suites import Suite, plan

CONFIG = Config.model_validate({"model": {"path": "x"}, "env": {"window": 1}, "eval": {"fixed": 3}})


def by_oracle(suite: Suite, seed: int) -> Trajectory:
    spec, env, texts = get_spec(suite.env), make(suite.env), list[str]()
    assert spec.expert is not None
    env.reset(seed)
    ended = False
    while not ended:
        texts.append(spec.expert(env))
        ended = env.step(texts[-1]).terminated
    return Trajectory(0, tuple(turn(text=text) for text in texts), StopReason.TERMINATED, 1.0)


def lost(suite: Suite, seed: int) -> Trajectory:
    return Trajectory(0, (turn(text="?"),) * suite.max_turns, StopReason.TURN_LIMIT, 0.0)


def evaluation(version: int, player) -> Evaluation:
    (suite,) = plan(CONFIG, ["fixed64"]).suites
    groups = [TrajectoryGroup("g", suite.env, seed, version, (player(suite, seed),), {}) for seed in suite.seeds]
    return Evaluation(f"v{version}", "", version, 1, 1, 8, (suite_result(suite, groups),))


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    found = RunDir(tmp_path)
    for version in (1, 2):
        found.log({"version": version, "rollout/solve_rate": 0.5, "seconds/train": 2.0})
    return found


def test_a_resumed_run_reports_and_draws_what_was_before(run: RunDir) -> None:
    write_json(run.path / report.BEFORE, as_json(evaluation(0, lost)))
    before = report.read_before(run, Console(file=StringIO()))
    report.write(run, CONFIG, before, evaluation(2, by_oracle), {"training": 4.0})
    written = json.loads((run.path / "report.json").read_text())
    assert (written["before"][0]["rate"], written["after"][0]["rate"]) == (0.0, 1.0)
    assert written["seconds"] == {"training": 4.0, "training: train": 4.0}
    assert (run.path / "learning-curve.png").stat().st_size > 1000
    with Image.open(run.path / "before-after.gif") as picture:
        longest = max(len(episodes[0].texts) for episodes in evaluation(2, by_oracle).results[0].episodes)
        assert getattr(picture, "n_frames", 1) >= longest
        assert picture.width > 2 * picture.height


def test_a_run_without_a_before_and_one_with_a_damaged_one(run: RunDir) -> None:
    heard = StringIO()
    assert report.read_before(run, Console(file=heard)) is None
    assert heard.getvalue() == ""
    (run.path / report.BEFORE).write_text("{")
    assert report.read_before(run, Console(file=heard)) is None
    assert "the report goes without it" in heard.getvalue()
    report.write(run, CONFIG, None, evaluation(2, by_oracle), {})
    assert json.loads((run.path / "report.json").read_text())["before"] == []
    assert not (run.path / "before-after.gif").exists()
