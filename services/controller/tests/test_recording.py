"""What a run records of its episodes, beside the training and never at its expense."""

import logging
import threading
from pathlib import Path
from typing import Any

import pytest
from replicas import Replica, episode, fleet_of

from tandem.config import Config
from tandem.storage.episode_index import Entry, read_index
from tandem.storage.episodes import read_groups, read_line
from tandem.types import AdapterRef, TrajectoryGroup
from tandem_controller.evaluate import evaluate
from tandem_controller.recording import WAITING, Recorder, recording
from tandem_controller.suites import plan

MODEL = Path(__file__).parents[3] / "models" / "tiny-qwen3vl"


def config(**record: Any) -> Config:
    tree = {"model": {"path": str(MODEL)}, "env": {"window": 1}, "eval": {"fixed": 3, "heldout": 2}, "record": record}
    return Config.model_validate(tree)


def played(*seeds: int, version: int = 0) -> list[TrajectoryGroup]:
    return [
        TrajectoryGroup(f"v{version}-t{seed}", "maze2d:tiny", seed, version, (episode(0, True), episode(1, False)), {})
        for seed in seeds
    ]


def index(run: Path) -> list[Entry]:
    return read_index(run / "episodes")


def seen(run: Path) -> list[tuple[str, int, int]]:
    return [(entry.label.suite, entry.label.version, entry.seed) for entry in index(run)]


async def test_training_and_evaluations_are_recorded_with_what_was_learned(tmp_path: Path) -> None:
    suites = plan(config(), ["fixed64"]).suites
    replica = Replica(play=lambda request, seed: (episode(0, seed % 2 == 0),))
    async with fleet_of(replica) as fleet, recording(tmp_path, config(), 0) as recorder:
        for _ in range(2):  # the second time, a resumed run evaluates again
            save = recorder_of(recorder, 0)
            await evaluate(fleet, config(), AdapterRef(0, "", "", "the base model", "", 0), suites, save)
        recorder.step(0, played(5, 6), {"v0-t5": {0: 0.5, 1: -0.5}})
    fixed = [("fixed64", 0, seed) for seed in suites[0].seeds]
    assert seen(tmp_path) == [*fixed, ("train", 0, 5), ("train", 0, 6)]
    five, six = index(tmp_path)[-2:]
    assert [member.advantage for member in five.members] == [0.5, -0.5]
    assert [member.advantage for member in six.members] == [None, None], "dropped: not learned from"
    assert five.label.temperature == config().rollout.temperature
    line = read_line(tmp_path / "episodes", five)
    (piece,) = line.trajectories[0].turns[0].pieces
    assert piece, "the text of the one token, by the model's own tokenizer"


def recorder_of(recorder: Recorder, version: int):
    return lambda suite, groups: recorder.evaluation(version, suite, groups)


async def test_steps_made_again_after_a_resume_are_shown_once(tmp_path: Path) -> None:
    async with recording(tmp_path, config(), 0) as recorder:
        for version in range(3):
            recorder.step(version, played(10 + version, version=version), {})
    with (tmp_path / "episodes/index.jsonl").open("ab") as file:
        file.write(b'{"group":{"part":"train-0000')  # it was killed
    async with recording(tmp_path, config(), 1) as recorder:
        recorder.step(1, played(11, 12, version=1), {})
    assert seen(tmp_path) == [("train", 0, 10), ("train", 1, 11), ("train", 1, 12)]
    assert [group.seed for group in read_groups(tmp_path / "episodes")] == [10, 11, 12]


async def test_a_resume_that_makes_no_step_takes_back_what_lies_beyond(tmp_path: Path) -> None:
    async with recording(tmp_path, config(), 0) as recorder:
        recorder.step(0, played(10), {})
    async with recording(tmp_path, config(), 0):
        pass
    assert seen(tmp_path) == []


@pytest.mark.parametrize(("share", "least", "most"), [(0.0, 0, 0), (0.3, 15, 45), (1.0, 100, 100)])
async def test_a_share_of_the_groups_is_kept_whole(tmp_path: Path, share: float, least: int, most: int) -> None:
    for name in ("a", "b"):
        async with recording(tmp_path / name, config(share=share, evaluations=False), 0) as recorder:
            recorder.step(0, played(*range(100)), {})
            recorder.evaluation(0, plan(config(), ["fixed64"]).suites[0], played(1))
    if not share:
        assert not (tmp_path / "a/episodes/index.jsonl").exists()
        return
    assert least <= len(index(tmp_path / "a")) <= most
    assert seen(tmp_path / "a") == seen(tmp_path / "b"), "by seed: the same ones after a resume"


async def test_old_steps_give_way_and_their_figures_stay(tmp_path: Path) -> None:
    async with recording(tmp_path, config(max_gib=10_000 / 2**30), 0) as recorder:
        for version in range(20):
            recorder.step(version, played(version), {})
            recorder._thread.submit(int).result()
    found = index(tmp_path)
    assert [entry.seed for entry in found] == list(range(20))
    kept = [entry.seed for entry in found if not entry.gone]
    assert 0 in kept and 19 in kept and len(kept) < 20
    parts = [path for path in (tmp_path / "episodes").iterdir() if path.is_dir()]
    assert sum(file.stat().st_size for part in parts for file in part.iterdir()) <= 10_000


async def test_a_disk_that_fails_costs_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "episodes").write_text("")  # no folder
    async with recording(tmp_path, config(), 0) as recorder:
        for version in range(5):
            recorder.step(version, played(version), {})
            recorder.evaluation(version, plan(config(), ["fixed64"]).suites[0], played(1))
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "no more episodes are recorded" in record.getMessage() and "cannot be written" in record.getMessage()


async def test_a_disk_that_is_slow_holds_up_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    free = threading.Event()
    async with recording(tmp_path, config(), 0) as recorder:
        recorder._thread.submit(free.wait)
        for version in range(3 * WAITING):
            recorder.step(version, played(version), {})
        free.set()
    assert [entry.seed for entry in index(tmp_path)] == list(range(WAITING)), "the rest was never held in memory"
    assert len(caplog.records) == 1 and "too slow" in caplog.text


async def test_a_rehearsal_has_no_tokenizer_and_records_all_the_same(tmp_path: Path) -> None:
    rehearsal = Config.model_validate({"model": {"path": str(tmp_path)}})
    async with recording(tmp_path, rehearsal, 0) as recorder:
        recorder.step(0, played(1), {})
    line = read_line(tmp_path / "episodes", index(tmp_path)[0])
    assert line.trajectories[0].turns[0].pieces == ()
