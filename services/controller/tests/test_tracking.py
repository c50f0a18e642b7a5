"""Trackers: real ones are read back, and none that fails or hangs is felt by the run.

Weights & Biases and MLflow are not in Tandem's own environment: `make trackers-check` installs them aside.
"""

from __future__ import annotations

import json
import logging
import struct
import threading
from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from test_report import evaluation

from tandem.config import Config
from tandem.runtime import pause
from tandem.types import UserError
from tandem_controller.run_dir import RunDir
from tandem_controller.sessions import FINISHED, STOPPED, Open
from tandem_controller.tracking import Courier, Tracked, check_trackers, tracked

pb: Any = import_module("tensorboardX.proto.event_pb2")  # its types are made when it is imported
RUN_ID = "0123abcd" * 4
ROW = {"version": 1, "time": 1.0, "rollout/solve_rate": 0.5, "loss": None, "what": "text", "odd": float("nan")}


def config(folder: Path, kind: str, **options: object) -> Config:
    trackers = {"kinds": [kind], "finish_s": 60, **options}
    return Config.model_validate(
        {"model": {"path": "m"}, "run": {"name": "maze", "dir": str(folder)}, "trackers": trackers}
    )


async def told(settings: Config, folder: Path, version: int, steps: range, how: str = FINISHED) -> None:
    """A session that goes on from a version and makes steps."""
    (folder / "maze").mkdir(exist_ok=True)
    run, end = RunDir(folder / "maze", {"run_id": RUN_ID}), Open(version)
    async with tracked(settings, run, version, end) as tracking:
        for step in steps:
            tracking.step({**ROW, "version": step, "rollout/solve_rate": step / 8 + version})
        end.how = how


def events(file: Path) -> list[Any]:
    """Of a TensorBoard file: length (8 bytes), its checksum, the event, its checksum."""
    data, found = file.read_bytes(), list[Any]()
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        found.append(pb.Event.FromString(data[12 : 12 + length]))
        data = data[16 + length :]
    return found


async def test_tensorboard_shows_each_step_once_over_a_resume(tmp_path: Path) -> None:
    settings = config(tmp_path, "tensorboard")
    await told(settings, tmp_path, 0, range(1, 5))
    await told(settings, tmp_path, 2, range(3, 6))  # it was killed: 3 and 4 are made anew
    files = sorted((tmp_path / "maze/tensorboard").iterdir())
    shown: dict[int, float] = {}
    for event in (event for file in files for event in events(file)):
        if event.session_log.status == pb.SessionLog.START:
            shown = {step: value for step, value in shown.items() if step < event.step}
        for value in event.summary.value:
            assert value.tag in ("rollout/solve_rate", "settings/text_summary")
            if value.tag == "rollout/solve_rate":
                assert event.step not in shown
                shown[event.step] = value.simple_value
    assert shown == {1: 1 / 8, 2: 2 / 8, 3: 3 / 8 + 2, 4: 4 / 8 + 2, 5: 5 / 8 + 2}
    assert any(b"learner.lr" in event.SerializeToString() for event in events(files[0]))


async def test_evaluations_are_told(tmp_path: Path) -> None:
    (tmp_path / "maze").mkdir()
    run = RunDir(tmp_path / "maze", {"run_id": RUN_ID})
    async with tracked(config(tmp_path, "tensorboard"), run, 0, Open(0)) as tracking:
        tracking.evaluation(evaluation(7, True))
        tracking.evaluation(None)
    (file,) = (tmp_path / "maze/tensorboard").iterdir()
    (found,) = [(e.step, v) for e in events(file) for v in e.summary.value if v.tag.startswith("eval/")]
    assert (found[0], found[1].tag, found[1].simple_value) == (7, "eval/fixed64_greedy", 1.0)


class Broken:
    """A tracker whose server is not there, from a call on."""

    def __init__(self, calls: int) -> None:
        self.left, self.seen = calls, list[int]()

    def start(self, run: Tracked) -> None:
        self._call()

    def log(self, step: int, row: Mapping[str, float]) -> None:
        self._call()
        self.seen.append(step)

    def finish(self, summary: Mapping[str, str | float]) -> None:
        self._call()

    def _call(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise ConnectionError("no route\nto host")


class Hanging(Broken):
    """One that never answers."""

    def __init__(self) -> None:
        super().__init__(99)
        self.go_on = threading.Event()

    def log(self, step: int, row: Mapping[str, float]) -> None:
        self.go_on.wait()
        super().log(step, row)


RUN = Tracked("maze", RUN_ID, Path("/nowhere"), 0, {})


@pytest.mark.parametrize(("calls", "seen"), [(0, []), (3, [1, 2])])
def test_one_that_fails_says_so_once(calls: int, seen: list[int], caplog: pytest.LogCaptureFixture) -> None:
    tracker = Broken(calls)
    courier = Courier("x", tracker, RUN)
    for step in range(1, 9):
        courier.log(step, {"loss": 1.0})
    courier.finish({"state": "finished"})
    courier.wait(60)
    assert tracker.seen == seen
    assert [record.getMessage() for record in caplog.records] == [
        "tracker x: ConnectionError: no route to host; the run goes on without, metrics.jsonl has all"
    ]


def test_one_that_hangs_holds_nothing_up(caplog: pytest.LogCaptureFixture) -> None:
    tracker = Hanging()
    courier = Courier("x", tracker, RUN, longest=3)
    for step in range(1, 9):
        courier.log(step, {"loss": 1.0})  # comes back at once: else this test does not end
    courier.finish({"state": "finished"})
    courier.wait(0.01)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "tracker x: is too slow; rows are left out" in caplog.text
    tracker.go_on.set()


@pytest.mark.parametrize("kind", ["wandb", "mlflow"])
def test_one_that_is_not_installed_is_told_before_anything_starts(tmp_path: Path, kind: str) -> None:
    if find_spec(kind) is not None:
        check_trackers(config(tmp_path, kind))
        return
    with pytest.raises(UserError, match=rf"{kind} needs {kind}, .*; pip install 'tandem-controller\[{kind}\]'"):
        check_trackers(config(tmp_path, kind))


def records(data: bytes) -> Iterator[bytes]:
    """Of a file of Weights & Biases: a header of 7 bytes, then LevelDB's log format, in blocks of 32 KiB."""
    at, parts = 7, list[bytes]()
    while at + 7 <= len(data):
        if (left := 32768 - at % 32768) < 7:
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        parts.append(data[at + 7 : at + 7 + length])
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield b"".join(parts)
            parts.clear()


async def test_weights_and_biases_keeps_the_runs_id(tmp_path: Path) -> None:
    wandb = pytest.importorskip("wandb.proto.wandb_internal_pb2", reason="not installed here: make trackers-check")
    settings = config(tmp_path, "wandb", wandb_mode="offline")
    await told(settings, tmp_path, 0, range(1, 3))
    await pause(1.1)  # its folders are named by the second
    await told(settings, tmp_path, 2, range(3, 5), STOPPED)
    files = sorted((tmp_path / "maze/wandb").glob(f"offline-run-*-{RUN_ID}/run-{RUN_ID}.wandb"))
    shown: dict[int, float] = {}
    for file in files:
        for record in map(wandb.Record.FromString, records(file.read_bytes())):
            assert record.run.run_id in ("", RUN_ID)
            items = {(item.key or ".".join(item.nested_key)): item.value_json for item in record.history.item}
            if "rollout/solve_rate" in items:
                shown[json.loads(items["_step"])] = json.loads(items["rollout/solve_rate"])
    assert len(files) == 2 and shown == {1: 1 / 8, 2: 2 / 8, 3: 3 / 8 + 2, 4: 4 / 8 + 2}


async def test_mlflow_goes_on_with_the_same_run(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow.tracking", reason="not installed here: make trackers-check")
    settings = config(tmp_path, "mlflow")
    await told(settings, tmp_path, 0, range(1, 5), STOPPED)
    await told(settings, tmp_path, 2, range(3, 6))
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/mlflow.db")
    experiment = client.get_experiment_by_name("tandem")
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status) == ("maze", "FINISHED")
    assert run.data.tags["tandem.run_id"] == RUN_ID and run.data.params["learner.lr"]
    history = client.get_metric_history(run.info.run_id, "rollout/solve_rate")
    assert {point.step: point.value for point in history} == {1: 1 / 8, 2: 2 / 8, 3: 3 / 8, 4: 4 / 8, 5: 5 / 8 + 2}
    assert len(history) == 5
