"""Play goes on whatever becomes of replicas: each group comes once, what was lost is played from its seeds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import grpc
import pytest
from replicas import LIMITS, Replica, Watched, at, episode, fleet_of

from tandem.types import (
    AdapterRef,
    ContextPolicy,
    DataCorrupt,
    RolloutTask,
    Sampling,
    StaleRequest,
    StopReason,
    TandemError,
    TrajectoryGroup,
    Unavailable,
    UserError,
)
from tandem_controller.dispatch import GRACE_S, Dispatch

TASK = RolloutTask("e", (5, 3, 9, 1, 7), 2, 0, Sampling(), ContextPolicy(), 3, 0)
BASE = AdapterRef(0, "", "", "the base model", "", 0)
HEDGING = LIMITS.model_copy(update={"straggler_s": 0.05})


class Steps(Replica):
    """Begins what it is asked for, and says so; goes on with a seed once the test lets it. `dies` says which seeds end
    it: from then on it is not there."""

    def __init__(self, open_: bool = False, dies: Sequence[int] = ()) -> None:
        super().__init__(served=0)
        self.open, self.dies, self.dead = asyncio.Event(), dies, asyncio.Event()
        self.together = 0
        self.most_together = 0
        self.alone: list[int] = []
        if open_:
            self.open.set()

    async def begun(self, count: int) -> None:
        async with asyncio.timeout(10):
            while len(self.asked) < count:  # noqa: ASYNC110
                await asyncio.sleep(0.005)

    async def Rollout(self, request, context):
        if self.dead.is_set():
            raise Unavailable("dead")
        self.asked += request.seeds
        self.requests.append(request)
        self.together += 1
        self.most_together = max(self.most_together, self.together)
        try:
            await asyncio.wait(
                [asyncio.ensure_future(event.wait()) for event in (self.open, self.dead)],
                return_when=asyncio.FIRST_COMPLETED,
            )
            for seed in request.seeds:
                if seed in self.dies:
                    self.dead.set()
                if self.dead.is_set():
                    raise Unavailable("died")
                yield self.reply(request, seed)
        finally:
            self.together -= 1


def seeds_of(groups: Sequence[TrajectoryGroup]) -> list[int]:
    return [group.seed for group in groups]


async def test_seeds_are_dealt_evenly_and_groups_come_back_by_seed() -> None:
    first, second = Replica(), Replica()
    seen: list[int] = []
    async with fleet_of(first, second) as fleet:
        groups = await fleet.play(TASK, lambda group: seen.append(group.seed))
    assert seeds_of(groups) == [1, 3, 5, 7, 9]
    assert (sorted(first.asked), sorted(second.asked)) == ([5, 7, 9], [1, 3])
    assert sorted(seen) == [1, 3, 5, 7, 9]


async def test_no_replica_gets_many_more_episodes_than_it_has_seats_and_an_early_one_takes_more() -> None:
    slow, quick = Steps(), Steps(open_=True)
    task = replace(TASK, seeds=tuple(range(40)))  # two a group on eight seats, and a quarter: five groups at a time
    async with fleet_of(slow, quick) as fleet:
        playing = asyncio.ensure_future(fleet.play(task))
        await quick.begun(35)
        assert len(slow.asked) == slow.most_together == 5
        slow.open.set()
        assert seeds_of(await playing) == list(range(40))
        assert quick.most_together <= 5


async def test_a_group_that_never_comes_is_noticed() -> None:
    """Each replica loses it: that is told three times, and then it counts as failed."""
    async with fleet_of(Replica(lost=3), Replica(lost=3)) as fleet:
        groups = await fleet.play(TASK)
    assert seeds_of(groups) == [1, 3, 5, 7, 9]
    assert {t.stop_reason for t in groups[1].trajectories} == {StopReason.ENV_ERROR}
    assert "ended without the groups of seeds [3]" in groups[1].trajectories[0].error


async def test_what_a_lost_replica_was_playing_is_played_elsewhere_and_nothing_comes_twice() -> None:
    dying, other = Steps(), Steps(open_=True)
    seen: list[int] = []
    async with fleet_of(dying, other) as fleet:
        playing = asyncio.ensure_future(fleet.play(TASK, lambda group: seen.append(group.seed)))
        await dying.begun(3)
        dying.dead.set()
        assert seeds_of(await playing) == sorted(seen) == [1, 3, 5, 7, 9]
        ((member, problem),) = fleet.lost  # told once, with three calls in play
        assert member.identity.index == 0 and "died" in str(problem)
        assert sorted(other.asked) == [1, 3, 5, 7, 9]


async def test_one_that_others_say_is_dead_plays_no_more_and_what_it_says_late_counts_for_nothing() -> None:
    slow, other = Steps(), Steps(open_=True)
    async with fleet_of(slow, other) as fleet:
        playing = asyncio.ensure_future(fleet.play(TASK))
        await slow.begun(3)
        fleet.lose(fleet.members[0].identity)
        slow.open.set()
        assert seeds_of(await playing) == [1, 3, 5, 7, 9]
        assert fleet.lost == [] and len(fleet.members) == 1


async def test_a_newcomer_takes_what_waits_at_once() -> None:
    busy, newcomer = Steps(), Steps(open_=True)
    async with fleet_of(busy) as fleet, at(newcomer) as more:
        await fleet.load(BASE)
        playing = asyncio.ensure_future(fleet.play(replace(TASK, seeds=tuple(range(12)))))
        await busy.begun(5)
        await fleet.admit(more.members(first=1)[0])
        await newcomer.begun(7)
        busy.open.set()
        assert seeds_of(await playing) == list(range(12))


async def test_one_that_leaves_ends_what_it_plays_and_gets_no_more() -> None:
    leaving, other = Steps(), Steps()
    async with fleet_of(leaving, other) as fleet:
        playing = asyncio.ensure_future(fleet.play(replace(TASK, seeds=tuple(range(20)))))
        await leaving.begun(5)
        draining = asyncio.ensure_future(fleet.drain(0))
        other.open.set()
        await other.begun(15)
        assert not draining.done() and len(fleet.members) == 2
        leaving.open.set()
        await draining
        assert [member.identity.index for member in fleet.members] == [1] and fleet.lost == []
        assert seeds_of(await playing) == list(range(20)) and len(leaving.asked) == 5


async def test_play_waits_for_a_replica_for_as_long_as_it_may() -> None:
    async with fleet_of(Steps(open_=True, dies=[9]), patience_s=20) as fleet, at(Steps(open_=True)) as more:
        fleet.when_lost = lambda: fleet.admit(more.members(first=1)[0])
        assert seeds_of(await fleet.play(TASK)) == [1, 3, 5, 7, 9]
    async with fleet_of(Steps(open_=True, dies=[9])) as fleet:
        with pytest.raises(Unavailable, match=r"none came within 0 s; rollout 0 \(generation 1\) .* was lost: .*died"):
            await fleet.play(TASK)


@asynccontextmanager
async def replaced_for_ever(dies: Sequence[int], **settings) -> AsyncIterator[Watched]:
    """Two replicas that `dies` end, and whoever comes in their place."""
    made = [Steps(open_=True, dies=dies) for _ in range(12)]
    async with fleet_of(*made[:2], patience_s=20, **settings) as fleet, at(*made[2:]) as more:
        coming = iter(more.members(first=2))
        fleet.when_lost = lambda: fleet.admit(next(coming))
        yield fleet
        await asyncio.gather(*fleet.replacing)


async def test_a_seed_that_kills_every_replica_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    async with replaced_for_ever(dies=[9]) as fleet:
        groups = await fleet.play(replace(TASK, seeds=tuple(range(16))))
        assert len(fleet.lost) == 3
    assert seeds_of(groups) == list(range(16))
    failed = [group.seed for group in groups if any(t.stop_reason.failed for t in group.trajectories)]
    assert failed == [9]
    assert "tried on 3 replicas, the last time: rollout" in groups[9].trajectories[0].error
    assert "task seed 9 of e is given up" in caplog.text and "set env.workers: processes" in caplog.text


async def test_of_a_fixed_share_only_the_seed_that_kills_is_given_up() -> None:
    async with replaced_for_ever(
        dies=[9], limits=LIMITS.model_copy(update={"replicas": 2}), deterministic=True
    ) as fleet:
        groups = await fleet.play(replace(TASK, seeds=tuple(range(10))))
    assert seeds_of(groups) == list(range(10))
    assert [g.seed for g in groups if any(t.stop_reason.failed for t in g.trajectories)] == [9]


async def test_a_share_that_is_late_and_lost_for_the_last_time_is_played_one_by_one_alone() -> None:
    """It waits for another replica to begin it as well when the third that plays it dies."""
    dying, last = [Steps() for _ in range(3)], [Steps(), Steps()]
    settings = {"limits": HEDGING.model_copy(update={"replicas": 1}), "deterministic": True, "patience_s": 20.0}
    async with fleet_of(dying[0], **settings) as fleet, at(*dying[1:], *last) as more:
        coming = iter(more.members(first=1))
        playing = asyncio.ensure_future(fleet.play(replace(TASK, seeds=(1, 2, 3))))
        for replica in dying:
            await replica.begun(3)
            async with asyncio.timeout(10):
                while not fleet.figures()["fleet/begun_twice"]:  # it is late  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
            replica.dead.set()
            async with asyncio.timeout(10):
                while fleet.members:  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
            if replica is not dying[-1]:
                await fleet.admit(next(coming))
        for member in coming:
            await fleet.admit(member)
        for replica in last:
            await replica.begun(1)
        last[0].open.set()
        await last[0].begun(2)
        last[1].open.set()
        assert seeds_of(await playing) == [1, 2, 3]
    assert {len(request.seeds) for replica in last for request in replica.requests} == {1}


async def test_one_that_serves_another_version_than_it_should_is_lost_and_who_asks_for_it_is_told() -> None:
    class Stale(Replica):
        async def Rollout(self, request, context):
            raise StaleRequest("version 0 was asked for, it serves 9")
            yield

    async with fleet_of(Stale(served=0), Replica(served=0)) as fleet:
        await fleet.load(BASE)
        assert seeds_of(await fleet.play(TASK)) == [1, 3, 5, 7, 9]
        assert len(fleet.lost) == 1
    async with fleet_of(Stale(served=0)) as fleet:
        await fleet.load(BASE)
        with pytest.raises(StaleRequest, match="version 0 was asked for"):
            await fleet.play(replace(TASK, policy_version=3))


@pytest.mark.parametrize("problem", [UserError("no such environment"), DataCorrupt("not its checksum")])
async def test_what_every_replica_would_refuse_ends_the_call(problem: TandemError) -> None:
    class Refusing(Replica):
        async def Rollout(self, request, context):
            raise problem
            yield

    async with fleet_of(Refusing(), Steps()) as fleet:
        with pytest.raises(type(problem), match=str(problem)):
            await fleet.play(TASK)
        assert fleet.lost == []


async def test_a_play_that_is_cut_off_leaves_nothing_running() -> None:
    replica = Steps()
    async with fleet_of(replica) as fleet:
        playing = asyncio.ensure_future(fleet.play(replace(TASK, seeds=tuple(range(9)))))
        await replica.begun(5)
        playing.cancel()
        await asyncio.wait({playing})
        replica.open.set()
        assert seeds_of(await fleet.play(TASK)) == [1, 3, 5, 7, 9]
        assert len(replica.asked) == 10 and replica.together == 0


class Together(Steps):
    """Every group says who it is played with: all of the call's seeds, in their order."""

    def __init__(self, **settings) -> None:
        super().__init__(**settings)
        self.play = lambda request, seed: tuple(
            replace(episode(m, False), error=" ".join(map(str, request.seeds))) for m in range(request.group_size)
        )


async def test_with_fixed_shares_nothing_that_becomes_of_replicas_changes_who_is_played_with_whom() -> None:
    task = replace(TASK, seeds=tuple(range(9)))
    settings = {"limits": LIMITS.model_copy(update={"replicas": 2}), "deterministic": True, "patience_s": 20.0}
    async with fleet_of(Together(open_=True), Together(open_=True), **settings) as fleet:
        whole = await fleet.play(task)
    dying, draining = Together(), Together()
    async with fleet_of(dying, draining, **settings) as fleet, at(Together(open_=True)) as more:
        await fleet.load(BASE)
        playing = asyncio.ensure_future(fleet.play(task))
        await dying.begun(5)
        await draining.begun(4)
        assert dying.most_together == 1
        dying.dead.set()
        leaving = asyncio.ensure_future(fleet.drain(1))
        await fleet.admit(more.members(first=2)[0])
        draining.open.set()
        await leaving
        assert await playing == whole
    async with fleet_of(*(Together(open_=True) for _ in range(3)), **settings) as fleet:  # scaled up
        assert await fleet.play(task) == whole
    assert [g.trajectories[0].error for g in whole[:2]] == ["0 2 4 6 8", "1 3 5 7"]


async def test_an_error_that_nobody_foresaw_is_tried_elsewhere() -> None:
    class Broken(Replica):
        async def Rollout(self, request, context):
            await context.abort(grpc.StatusCode.INTERNAL, "KeyError: 'x'")
            yield

    async with fleet_of(Broken(), Steps(open_=True)) as fleet:
        groups = await fleet.play(replace(TASK, seeds=(1, 2)))
    assert seeds_of(groups) == [1, 2] and len(fleet.lost) == 0


@pytest.mark.parametrize(("groups", "size", "waves"), [(17, 1, 3), (8, 2, 2), (1, 17, 3), (2, 5, 2), (5, 3, 3)])
def test_the_calls_deadline_leaves_each_wave_of_episodes_its_own(groups: int, size: int, waves: int) -> None:
    """On 8 seats: 17 episodes are 3 waves of 10 s each; 2 groups of 5 are 2, where groups are played whole."""
    dispatch = Dispatch(LIMITS, fixed=False, on_gone=lambda r, p: None, stale=lambda task: False)
    assert dispatch.timeout_s(groups, size) == 10 * waves + GRACE_S


async def test_a_straggler_is_begun_elsewhere_and_who_ends_first_counts() -> None:
    slow, other = Steps(), Steps(open_=True)
    async with fleet_of(slow, other, limits=HEDGING) as fleet:
        seen: list[int] = []
        groups = await fleet.play(TASK, lambda group: seen.append(group.seed))
        assert seeds_of(groups) == sorted(seen) == [1, 3, 5, 7, 9]
        assert sorted(other.asked) == [1, 3, 5, 7, 9] and sorted(slow.asked) == [5, 7, 9]
        figures = fleet.figures()
        assert figures["fleet/begun_twice"] == 3 and figures["fleet/lost"] == 0
        assert len(fleet.members) == 2  # slow is no reason to be lost
        async with asyncio.timeout(10):
            while slow.together:  # it is cut off there  # noqa: ASYNC110
                await asyncio.sleep(0.005)


async def test_a_straggler_whose_replica_is_lost_meanwhile_is_played_once_more_and_no_more() -> None:
    slow, other = Steps(), Steps()
    async with fleet_of(slow, other, limits=HEDGING) as fleet:
        playing = asyncio.ensure_future(fleet.play(TASK))
        await other.begun(5)  # two of its own, three late ones
        slow.dead.set()
        await slow.begun(5)  # the other's are late, too
        other.open.set()
        assert seeds_of(await playing) == [1, 3, 5, 7, 9] and len(fleet.members) == 1
        assert sorted(other.asked) == [1, 3, 5, 7, 9]
