"""Deterministic play: what is asked of the engine, and what comes of it, is a function of the task and the policy."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rollout_stub_engine import StubEngine

from tandem import envs
from tandem.envs import Observation, StepResult
from tandem.model.chat import ChatFormat
from tandem.types import ContextPolicy, RolloutTask, Sampling, StopReason, TrajectoryGroup, UserError
from tandem_rollout.base_model import BaseModel
from tandem_rollout.core import Limits, Player
from tandem_rollout.engine import Completion, LocalAdapter, Request
from tandem_rollout.environments import EnvThreads

SEEDS = tuple(envs.seeds("maze2d:tiny", "train", 5))
TASK = RolloutTask("maze2d:tiny", SEEDS, 3, 0, Sampling(max_tokens=6), ContextPolicy(0), 8, 11)
LIMITS = Limits(6, 60, 14, deterministic=True)  # two groups at once


class Jittery:
    """A maze whose moves come from a script (a random model's text never parses), after random times."""

    def __init__(self) -> None:
        self.inner = envs.make("maze2d:tiny")
        self.instruction = self.inner.instruction
        self.turn = 0

    def reset(self, seed: int) -> Observation:
        self.turn = seed
        return self.inner.reset(seed)

    def step(self, completion_text: str) -> StepResult:
        time.sleep(random.SystemRandom().choice((0.0, 0.0, 0.1)))
        self.turn += 1
        result = self.inner.step(f"('move', {self.turn % 4})")
        return replace(result, terminated=result.terminated or len(completion_text) % 7 == 0)

    def close(self) -> None:
        self.inner.close()


def jittery() -> EnvThreads:
    return EnvThreads(lambda env: Jittery(), step_timeout_s=60)


async def play(player: Player, task: RolloutTask = TASK) -> list[TrajectoryGroup]:
    groups = [replace(group, seconds=0.0) async for group in player.play(task)]
    return sorted(groups, key=lambda group: group.seed)


@pytest.mark.vllm
@pytest.mark.asyncio(loop_scope="session")
async def test_the_real_engine_gives_the_same_bits_whatever_the_timing(
    engine: Any, base: BaseModel, adapters: list[LocalAdapter]
) -> None:
    """Environments answer after random times, another task has filled the caches in between: every token and
    every bit of every logprob is the same."""
    await engine.serve(adapters[0])
    player = Player(engine, base.chat, jittery(), LIMITS)
    task = replace(TASK, policy_version=engine.policy_version)
    first = await play(player, task)
    await play(player, replace(task, seeds=SEEDS[2:], group_size=2, sampling_seed=12))
    assert await play(player, task) == first
    turns = [turn for group in first for trajectory in group.trajectories for turn in trajectory.turns]
    assert len({len(t.turns) for group in first for t in group.trajectories}) > 1  # rounds did shrink
    assert len(turns) > 40 and all(turn.rollout_logprobs for turn in turns)


class OrderSeen(StubEngine):
    """Notes the order of each round's requests by their seeds."""

    async def generate_together(self, requests: Sequence[Request]) -> list[Completion | BaseException]:
        self.orders = [*getattr(self, "orders", []), tuple(request.seed for request in requests)]
        return await super().generate_together(requests)


@pytest.mark.vllm
@pytest.mark.asyncio(loop_scope="session")
async def test_a_cut_off_call_leaves_an_engine_that_answers(engine: Any, base: BaseModel) -> None:
    """Whenever the caller goes away: while the engine is paused, while it computes, in between."""
    await engine.serve(None)
    player, task = Player(engine, base.chat, jittery(), LIMITS), replace(TASK, seeds=SEEDS[:2], max_turns=2)
    whole = await play(player, task)
    for after_s in (0.0, 0.01, 0.03, 0.1):
        cut = asyncio.ensure_future(play(player, task))
        await asyncio.wait({cut}, timeout=after_s)
        cut.cancel()
        await asyncio.wait({cut})
        assert await asyncio.wait_for(play(player, task), 60) == whole
    assert all(not member.stop_reason.failed for group in whole for member in group.trajectories)


@pytest.fixture(scope="module")
def chat(model_dir: Path) -> ChatFormat:
    return ChatFormat.load(model_dir)


async def test_rounds_are_whole_and_in_order(chat: ChatFormat) -> None:
    engines = [OrderSeen(chat), OrderSeen(chat)]
    for engine in engines:
        await play(Player(engine, chat, jittery(), LIMITS))
        assert engine.forgotten == 1
    one, other = engines
    assert one.orders == other.orders
    assert one.rounds == [6] * 8 + [6] * 8 + [3] * 8  # two groups of three at once, eight turns each


async def test_an_episode_that_fails_does_not_hold_up_the_round(chat: ChatFormat) -> None:
    engine = StubEngine(chat, fail_at=4)
    groups = await play(Player(engine, chat, jittery(), LIMITS))
    stops = [trajectory.stop_reason for group in groups for trajectory in group.trajectories]
    assert stops.count(StopReason.ENGINE_ERROR) == 1 and len(stops) == 15
    assert engine.rounds[:3] == [6, 5, 5]


async def test_an_environment_that_hangs_leaves_the_round(chat: ChatFormat) -> None:
    """One of three hangs in its second turn: the others play on without it."""
    made = itertools.count()

    class Stuck(Jittery):
        def __init__(self) -> None:
            super().__init__()
            self.hangs = next(made) == 1

        def step(self, completion_text: str) -> StepResult:
            self.turn += 1
            if self.hangs and self.turn == SEEDS[0] + 2:
                time.sleep(5.0)
            return self.inner.step("?")

    engine = StubEngine(chat)
    player = Player(engine, chat, EnvThreads(lambda env: Stuck(), step_timeout_s=1.0), LIMITS)
    (group,) = await play(player, replace(TASK, seeds=SEEDS[:1], max_turns=3))
    stops = [member.stop_reason for member in group.trajectories]
    assert sorted(stops) == [StopReason.ENV_ERROR, StopReason.TURN_LIMIT, StopReason.TURN_LIMIT]
    assert engine.rounds == [3, 3, 2]


async def test_an_engine_that_fails_unforeseen_ends_the_round_at_once(chat: ChatFormat) -> None:
    class Broken(StubEngine):
        async def generate_together(self, requests: Sequence[Request]) -> list[Completion | BaseException]:
            raise ZeroDivisionError("no such thing")

    with pytest.raises(ZeroDivisionError, match="no such thing"):
        await asyncio.wait_for(play(Player(Broken(chat), chat, jittery(), LIMITS)), 10)


async def test_a_caller_that_goes_away_ends_the_round(chat: ChatFormat) -> None:
    engine = StubEngine(chat, hold=asyncio.Event())
    playing = asyncio.ensure_future(play(Player(engine, chat, jittery(), LIMITS)))
    await engine.until_running(6)
    playing.cancel()
    await asyncio.wait({playing})
    await engine.until_running(0)


async def test_groups_must_fit(chat: ChatFormat) -> None:
    with pytest.raises(UserError, match="max_concurrent_episodes, now 6, to the group size 7"):
        await play(Player(StubEngine(chat), chat, jittery(), LIMITS), replace(TASK, group_size=7))
