"""Batches are played ahead, learned from in order and once each, never too old, also over a crash."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from replicas import Replica, episode, fleet_of

from tandem.config import Config, RolloutConfig
from tandem.envs import tasks
from tandem.rpc import codec
from tandem.rpc.gen.rollout.v1 import rollout_pb2
from tandem.types import Trajectory, TrajectoryGroup, Unavailable
from tandem_controller.pipeline import Pipeline, Position
from tandem_controller.run_dir import RunDir

GROUPS = 3
STEPS = 8
START = Position(0, 0)
ROOMY = RolloutConfig()


def config(staleness: int, deterministic: bool = False, **rollout: object) -> Config:
    tree = {"groups_per_step": GROUPS, "group_size": 2, "max_staleness": staleness, **rollout}
    return Config.model_validate(
        {"model": {"path": "x"}, "run": {"steps": STEPS, "deterministic": deterministic}, "rollout": tree}
    )


class Serving(Replica):
    """Plays under the version that `serves` says when a turn is made; seeds in `held` wait until they are let go."""

    def __init__(self) -> None:
        super().__init__()
        self.serves = 0
        self.held: set[int] = set()
        self.let_go = asyncio.Event()
        self.arrived: list[TrajectoryGroup] = []
        self._news = asyncio.Event()

    def note(self, group: TrajectoryGroup) -> None:
        """A group that has reached the pipeline."""
        self.arrived.append(group)
        self._news.set()

    async def all_but(self, held: int, batches: int) -> None:
        """Wait until so many batches have arrived, but for so many groups."""
        while len(self.arrived) < batches * GROUPS - held:
            self._news.clear()
            await self._news.wait()

    async def Rollout(self, request, context):
        assert request.policy_version <= self.serves
        assert request.may_advance or request.policy_version == self.serves
        self.requests.append(request)
        began = self.serves
        for seed in sorted(request.seeds, key=lambda seed: seed in self.held):
            self.asked.append(seed)
            if seed in self.held:
                await self.let_go.wait()
            members = tuple(_under(episode(m, m == 0, turns=2), began, self.serves) for m in range(request.group_size))
            group = TrajectoryGroup(f"g{seed}", request.env, seed, request.policy_version, members, {})
            yield rollout_pb2.RolloutResponse(group=codec.encode_group(group))


def _under(trajectory: Trajectory, *versions: int) -> Trajectory:
    turns = [replace(turn, policy_version=v) for turn, v in zip(trajectory.turns, versions, strict=True)]
    return replace(trajectory, turns=tuple(turns))


@asynccontextmanager
async def pipeline_of(
    replica: Serving, folder: Path, staleness: int, start: Position = START, **settings: Any
) -> AsyncIterator[Pipeline]:
    async with (
        fleet_of(replica, limits=ROOMY, deterministic=settings.get("deterministic", False)) as fleet,
        Pipeline(fleet, config(staleness, **settings), RunDir(folder), start, replica.note) as line,
    ):
        yield line


def batches(count: int) -> list[list[int]]:
    drawn = tasks.seeds("maze2d:tiny", "train", GROUPS * count)
    return [drawn[at : at + GROUPS] for at in range(0, len(drawn), GROUPS)]


def seeds(start: int, stop: int) -> list[int]:
    return [seed for batch in batches(stop)[start:] for seed in batch]


async def learn(line: Pipeline, replica: Serving, versions: range) -> list[list[TrajectoryGroup]]:
    found = []
    for version in versions:
        replica.serves = version
        found.append(await line.take(version))
    return found


@pytest.mark.parametrize("staleness", [0, 1, 3])
async def test_every_batch_in_order_and_once_and_never_too_old(tmp_path: Path, staleness: int) -> None:
    replica = Serving()
    async with pipeline_of(replica, tmp_path, staleness) as line:
        taken = await learn(line, replica, range(STEPS))
    assert [[group.seed for group in batch] for batch in taken] == batches(STEPS)
    assert sorted(replica.asked) == seeds(0, STEPS)  # none twice, none beyond the last step
    lag = [version - group.oldest_version for version, batch in enumerate(taken) for group in batch]
    assert max(lag) <= staleness and (max(lag) > 0) == (staleness > 0)


async def test_a_straggler_is_waited_for_while_others_are_played(tmp_path: Path) -> None:
    replica, wanted = Serving(), batches(4)
    replica.held = {wanted[1][2]}
    async with pipeline_of(replica, tmp_path, 2) as line:
        await learn(line, replica, range(1))
        replica.serves = 1
        waiting = asyncio.ensure_future(line.take(1))
        await replica.all_but(1, 4)
        assert not waiting.done()
        replica.let_go.set()
        assert [group.seed for group in await waiting] == wanted[1]


async def test_what_was_played_before_a_crash_is_not_played_again(tmp_path: Path) -> None:
    first = Serving()
    async with pipeline_of(first, tmp_path, 2) as line:
        taken = await learn(line, first, range(2))
        await line.begin_save(2)
        await line.saved()
        position = line.position(2)
        first.serves = 2
        taken += [await line.take(2)]  # learned from, but not saved
        await first.all_but(0, 5)
    assert position.ahead == tuple(map(tuple, batches(4)[2:]))
    again = Serving()
    async with pipeline_of(again, tmp_path, 2, position) as line:
        rest = await learn(line, again, range(2, STEPS))
    assert [[group.seed for group in batch] for batch in [*taken[:2], *rest]] == batches(STEPS)
    assert rest[0] == taken[2]
    assert not set(again.asked) & set(seeds(0, 5))  # batches 2 to 4 were there
    lag = [version - group.oldest_version for version, batch in enumerate(rest, 2) for group in batch]
    assert max(lag) <= 2


async def test_what_was_learned_from_before_the_save_is_not_kept(tmp_path: Path) -> None:
    """A run that ends saves its last version without a new file of the journal."""
    first = Serving()
    async with pipeline_of(first, tmp_path, 0) as line:
        await learn(line, first, range(2))
        position = line.position(2)
    async with pipeline_of(Serving(), tmp_path, 0, position):
        (file,) = (tmp_path / "journal").iterdir()
        assert file.stat().st_size == 0


async def test_what_later_versions_played_is_played_anew(tmp_path: Path) -> None:
    """The run died at version 4 but was saved at 2: versions 3 and 4 are yet to be made."""
    first = Serving()
    async with pipeline_of(first, tmp_path, 0) as line:
        await learn(line, first, range(2))
        await line.begin_save(2)
        await line.saved()
        position = line.position(2)
        kept = (await learn(line, first, range(2, 5)))[0]
    again = Serving()
    async with pipeline_of(again, tmp_path, 0, position) as line:
        taken = await learn(line, again, range(2, 5))
    assert taken[0] == kept
    assert sorted(again.asked) == seeds(3, 5)


async def test_a_smaller_bound_on_resume_holds_for_what_was_played_too(tmp_path: Path) -> None:
    first = Serving()
    async with pipeline_of(first, tmp_path, 3) as line:
        await learn(line, first, range(1))
        position = line.position(0 + 1)
        await line.begin_save(1)
        await line.saved()
        await first.all_but(0, 4)
    again = Serving()
    async with pipeline_of(again, tmp_path, 1, position) as line:
        taken = await learn(line, again, range(1, 4))
    lag = [version - group.oldest_version for version, batch in enumerate(taken, 1) for group in batch]
    assert max(lag) == 1
    assert [[group.seed for group in batch] for batch in taken] == batches(4)[1:]


async def test_groups_of_other_settings_are_played_anew(tmp_path: Path) -> None:
    for temperature in (1.0, 0.7):
        replica = Serving()
        async with pipeline_of(replica, tmp_path, 0, temperature=temperature) as line:
            await learn(line, replica, range(1))
        assert sorted(replica.asked) == batches(1)[0]


async def test_a_deterministic_run_plays_what_is_left_of_a_batch_with_the_rest_of_it(tmp_path: Path) -> None:
    """Who is played together shows in the last bits of what the engine computes: half a batch would play otherwise."""
    first, wanted = Serving(), batches(2)
    first.held = {wanted[1][2]}
    async with pipeline_of(first, tmp_path, 0, deterministic=True) as line:
        await learn(line, first, range(1))
        await line.begin_save(1)
        await line.saved()
        position = line.position(1)
        first.serves = 1
        cut_off = asyncio.ensure_future(line.take(1))
        await first.all_but(1, 2)
        cut_off.cancel()
    again = Serving()
    async with pipeline_of(again, tmp_path, 0, position, deterministic=True) as line:
        taken = await learn(line, again, range(1, 2))
    assert again.asked == [group.seed for group in taken[0]] == wanted[1]


async def test_a_failure_ahead_is_told_when_its_turn_comes(tmp_path: Path) -> None:
    class Failing(Serving):
        async def Rollout(self, request, context):
            if batches(2)[1][0] in request.seeds:
                raise Unavailable("the engine is dead")
            async for reply in super().Rollout(request, context):
                yield reply

    replica = Failing()
    async with pipeline_of(replica, tmp_path, 1) as line:
        await learn(line, replica, range(1))
        with pytest.raises(Unavailable, match="the engine is dead"):
            await line.take(1)
