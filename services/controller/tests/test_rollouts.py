"""Dynamic sampling: which seeds are played and which the learner gets, whatever order groups come back in."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from replicas import Replica, episode, fleet_of, lost, turn

from tandem.config import Config
from tandem.envs import tasks
from tandem.types import StopReason, TandemError, Trajectory
from tandem_controller.pipeline import Pipeline, Position
from tandem_controller.rollouts import Played, play_step
from tandem_controller.run_dir import RunDir


def mixed_where(has_signal):
    """One of two members solves a seed that has a signal, both another."""

    def play(request, seed: int) -> tuple[Trajectory, ...]:
        return tuple(episode(member, not (has_signal(seed) and member == 0)) for member in range(request.group_size))

    return play


@asynccontextmanager
async def pipeline_of(*replicas: Replica, groups: int = 4, max_refills: int = 0) -> AsyncIterator[Pipeline]:
    rollout = {"groups_per_step": groups, "group_size": 2, "max_refills": max_refills}
    config = Config.model_validate({"model": {"path": "x"}, "rollout": rollout})
    with TemporaryDirectory() as folder:
        async with fleet_of(*replicas) as fleet, Pipeline(fleet, config, RunDir(Path(folder)), Position(0, 0)) as line:
            yield line


async def played(max_refills: int, has_signal) -> tuple[Played, Position, list[Replica]]:
    replicas = [Replica(play=mixed_where(has_signal)), Replica(play=mixed_where(has_signal))]
    async with pipeline_of(*replicas, max_refills=max_refills) as line:
        return await play_step(line, 0), line.position(1), replicas


async def test_without_refills_the_learner_gets_all_that_was_played() -> None:
    step, position, _ = await played(0, lambda seed: False)
    assert [group.seed for group in step.learned] == tasks.seeds("maze2d:tiny", "train", 4)
    assert (step.refills, position.next_seed) == (0, step.learned[-1].seed + 1)


async def test_groups_without_a_signal_are_replaced_until_there_are_enough() -> None:
    seeds = tasks.seeds("maze2d:tiny", "train", 9)
    useful = {seeds[0], seeds[2], seeds[5], seeds[6]}  # rounds of 4, 2 (one of them useful), 1
    step, position, replicas = await played(5, useful.__contains__)
    assert sorted(replicas[0].asked + replicas[1].asked) == seeds[:7]
    assert [group.seed for group in step.learned] == sorted(useful)
    assert (step.refills, position.next_seed) == (2, seeds[6] + 1)
    figures = step.figures()
    assert figures["rollout/groups_played"] == 7
    assert figures["rollout/groups_with_signal"] == figures["rollout/groups_learned"] == 4
    assert figures["rollout/episodes"] == 14
    assert figures["rollout/solve_rate"] == pytest.approx(10 / 14)  # four groups have one of two


async def test_the_bound_ends_the_search() -> None:
    seeds = tasks.seeds("maze2d:tiny", "train", 12)
    step, position, _ = await played(2, {seeds[1]}.__contains__)
    # rounds of 4, 3 and 3: the one with a signal is in the first
    assert (step.refills, position.next_seed) == (2, seeds[9] + 1)
    assert [group.seed for group in step.learned] == [seeds[1]]


async def test_where_nothing_has_a_signal_the_learner_still_gets_a_step() -> None:
    step, _, _ = await played(1, lambda seed: False)
    assert [group.seed for group in step.learned] == tasks.seeds("maze2d:tiny", "train", 4)
    assert len(step.groups) == 8


async def test_the_next_step_plays_on_where_the_one_before_ended() -> None:
    replica = Replica(play=mixed_where(lambda seed: seed % 2 == 0))
    async with pipeline_of(replica, max_refills=3) as line:
        first, second = await play_step(line, 0), await play_step(line, 1)
    assert min(group.seed for group in second.groups) > max(group.seed for group in first.groups)


async def step_of(play) -> Played:
    async with pipeline_of(Replica(play=play)) as line:
        return await play_step(line, 0)


@pytest.mark.parametrize("stop", [StopReason.ENGINE_ERROR, StopReason.ENV_ERROR, StopReason.CONTEXT_LIMIT])
async def test_a_step_without_a_playable_episode_is_refused_with_the_commonest_reason(stop: StopReason) -> None:
    def play(request, seed: int) -> tuple[Trajectory, ...]:
        return lost(0, stop, "no such adapter"), lost(1, stop, "no such adapter" if seed % 2 else f"seed {seed}")

    with pytest.raises(TandemError, match="not one of 8 episodes could be played, mostly for this: no such adapter"):
        await step_of(play)


async def test_many_unplayed_episodes_are_warned_of_and_few_are_not(caplog: pytest.LogCaptureFixture) -> None:
    seeds = tasks.seeds("maze2d:tiny", "train", 4)

    def play(request, seed: int) -> tuple[Trajectory, ...]:
        return episode(0, True), lost(1, StopReason.DEADLINE, "60 s") if seed == seeds[0] else episode(1, False)

    with caplog.at_level(logging.WARNING):
        await step_of(play)
        assert "1 of 8 episodes could not be played, mostly for this: 60 s" in caplog.text
        caplog.clear()
        await step_of(lambda request, seed: (episode(0, True), episode(1, False)))
        assert caplog.text == ""


async def test_the_mean_return_is_of_all_that_the_policy_played() -> None:
    def play(request, seed: int) -> tuple[Trajectory, ...]:
        shaped = Trajectory(0, (turn(0.25), turn(0.25)), StopReason.TURN_LIMIT, 0.0)
        failed = Trajectory(1, (turn(9.0),), StopReason.DEADLINE, 0.0, error="60 s")
        return shaped, failed

    assert (await step_of(play)).figures()["rollout/return_mean"] == 0.5
