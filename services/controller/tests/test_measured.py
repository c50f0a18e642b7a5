"""The controller's metrics, its targets file, and what a run costs."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from tests.scrape import Scraper

from tandem.config import CostConfig, MachineConfig
from tandem.obs import instruments as of
from tandem.types import Death, Identity, Member, Role
from tandem_controller.causes import cause_of
from tandem_controller.cost import Spending
from tandem_controller.measured import Steps, record_evaluation
from tandem_controller.outcomes import Evaluation, suite_result
from tandem_controller.suites import Suite
from tandem_controller.targets import TARGETS_FILE, Targets

REPLICA = Member(Identity(Role.ROLLOUT, 1, 2), "10.0.0.7:1", "node-7", "10.0.0.7:9")
RANK = Member(Identity(Role.LEARNER, 0, 1), "10.0.0.8:1", "node-8")
MANAGER = Member(Identity(Role.CHECKPOINT_MANAGER), "10.0.0.9:1", "head", "10.0.0.9:9")


def test_a_step_is_recorded_from_its_row(scraper: Scraper) -> None:
    now = iter([100.0, 112.0, 113.0])
    steps = Steps(lambda: next(now))
    row = {
        "version": 1,
        "rollout/solve_rate": 0.25,
        "rollout/return_mean": -1.5,
        "rollout/groups_played": 8,
        "rollout/groups_with_signal": 2,
        "rollout/staleness_max": 1,
        "eval_solve_rate": 0.5,
        "seconds/generate": 5.0,
        "seconds/train": 3.0,
        "seconds/train/pack": 1.0,
        "seconds/snapshot": 0.5,
        "seconds/save_wait": 1.5,
    }
    steps.record(row)
    steps.record({"version": 2, "seconds/train": 1.0})
    found = scraper.values()
    assert found[of.STEPS.name] == {(): 2}
    assert found[of.SOLVE.name] == {(): 0.25}
    assert found[of.RETURN.name] == {(): -1.5}
    assert found[of.SIGNAL.name] == {(): 0.25}
    assert found[of.STALENESS_MAX.name] == {(): 1}
    assert found[of.EVAL_SOLVE.name] == {("greedy", "fixed64"): 0.5}
    assert found[of.PHASE.name] == {("generate",): 5, ("train",): 4, ("save",): 2, ("idle",): 2}
    assert found[f"{of.STEP_TIME.name}_sum"] == {(): 13}
    assert of.PARSE_FAILURES.name not in found


def test_an_evaluation_is_recorded_by_suite(scraper: Scraper) -> None:
    suite = Suite(name="heldout", env="maze2d:tiny", seeds=(), samples=4, temperature=1.0, max_turns=3)
    record_evaluation(Evaluation("a", "", 3, 0, 0, 16, (suite_result(suite, []),)), 4.0)
    record_evaluation(None, 1.5)
    found = scraper.values()
    assert found[of.EVAL_SOLVE.name] == {("sampled", "heldout"): 0}
    assert found[of.PHASE.name] == {("eval",): 5.5}


def test_the_targets_file_follows_who_is_there(tmp_path: Path) -> None:
    there = [REPLICA, RANK, MANAGER]
    path = tmp_path / TARGETS_FILE

    async def scenario() -> None:
        kept = Targets(tmp_path, "r", lambda: there)
        await kept.look()
        labels = {"run": "r", "role": "rollout", "index": "1", "node": "node-7"}
        first, second = json.loads(path.read_text())
        assert first == {"targets": ["10.0.0.7:9"], "labels": labels}
        assert second["targets"] == ["10.0.0.9:9"]
        before = path.stat().st_ino
        await kept.look()
        assert path.stat().st_ino == before  # no news, no write
        there.remove(REPLICA)
        await kept.look()
        assert [entry["targets"] for entry in json.loads(path.read_text())] == [["10.0.0.9:9"]]
        await kept.close()
        assert json.loads(path.read_text()) == []

    asyncio.run(scenario())


def test_targets_that_cannot_be_written_end_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    asyncio.run(Targets(tmp_path / "gone", "r", lambda: [REPLICA]).look())
    assert "prometheus.json cannot be written (No such file or directory)" in caplog.text


def test_money_is_machines_by_time_and_gpus_by_time() -> None:
    cost = CostConfig(machines=(MachineConfig(type="big", count=2, per_hour=10),), per_gpu_hour=3)
    now, gpus = 0.0, 4
    spending = Spending(cost, lambda: gpus, lambda: now)
    now, gpus = 1800.0, 1  # half an hour with four, then two hours with one
    spending.look()
    now = 1800.0 + 7200.0
    assert spending.gpu_seconds() == 4 * 1800 + 7200
    assert spending.money() == pytest.approx(2.5 * 20 + 0.5 * 4 * 3 + 2 * 3)


@pytest.mark.parametrize(
    ("why", "cause"),
    [
        ("out of memory: killed by the kernel (SIGKILL; its count of such kills rose: /proc/vmstat)", "out_of_memory"),
        ("node lost: node n7 is no longer part of the Ray cluster", "node_lost"),
        ("killed by SIGSEGV", "killed"),
        ("its host process on n7 was killed or crashed; the exit status is unknown", "killed"),
        ("exit code 1 (ValueError: no such environment)", "exited"),
        ("calls of it fail: rollout 1 (generation 2) at h:1: UNAVAILABLE", "unreachable"),
        ("it does not answer; learner 0: deadline", "unreachable"),
        ("it answers, but cannot go on: a rank was lost", "hung"),
        ("", "other"),
    ],
)
def test_a_death_has_one_cause(why: str, cause: str) -> None:
    assert cause_of(Death(REPLICA, why)) == cause
