"""Intervals by hand, and what counts as solved."""

import pytest

from tandem.config import Config
from tandem.types import FinishReason, StopReason, Trajectory, TrajectoryGroup, Turn
from tandem_controller import evaluate as ev

TURN = Turn((1,), (2,), (-0.5,), (), 0, "", "", 0.9, FinishReason.STOP)


def test_wilson_against_values_worked_out_by_hand() -> None:
    # n=10, p=0.5, z=1.96: centre 0.5; half width z/(1+z2/n) * sqrt(p(1-p)/n + z2/4n2)
    #   = 1.96/1.38416 * sqrt(0.025 + 0.009604) = 1.41602 * 0.186021 = 0.263410
    assert ev.wilson(5, 10) == pytest.approx((0.236590, 0.763410), abs=1e-4)
    # all of 64: upper 1, lower n/(n+z2) = 64/67.8415 = 0.943376
    assert ev.wilson(64, 64) == pytest.approx((0.943376, 1.0), abs=1e-5)
    assert ev.wilson(0, 0) == (0.0, 1.0)


def test_success_is_the_task_reward_never_the_shaped_one() -> None:
    shaped = Trajectory(0, (TURN, TURN), StopReason.TURN_LIMIT, task_reward=0.0)
    solved = Trajectory(1, (TURN,), StopReason.TERMINATED, task_reward=1.0)
    broken = Trajectory(2, (), StopReason.ENV_ERROR, task_reward=0.0, error="gone")
    result = ev.summarize("s", [TrajectoryGroup("g", "e", 0, 0, (shaped, solved, broken), {})])
    assert (result.solved, result.episodes, result.failed_episodes, result.mean_turns) == (1, 3, 1, 1.0)


def test_suites_follow_the_config_and_a_limit_cuts_each() -> None:
    config = Config.model_validate({"model": {"path": "x"}, "eval": {"fixed": 64, "heldout": 0, "samples": 2}})
    assert [(s.name, s.tasks, s.samples) for s in ev.suites(config)] == [
        ("fixed greedy", 64, 1),
        ("fixed sampled", 64, 2),
    ]
    assert ev.limited(ev.suites(config)[0], 10).tasks == 10
    assert ev.limited(ev.suites(config)[0], 0).tasks == 64
