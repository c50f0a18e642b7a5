"""What all replicas serve: everyone the same, proved; who cannot is lost, where most can. Over real gRPC servers."""

import asyncio
from dataclasses import replace

import pytest
from replicas import Replica, at, fleet_of

from tandem.types import (
    AdapterRef,
    DataCorrupt,
    NotFound,
    Pushed,
    StaleRequest,
    TandemError,
    Unavailable,
    UserError,
)
from tandem_controller.fleet import Fleet

ADAPTER = AdapterRef(4, "/x", "ab", "tandem-v4", "base-a", 1)


def addresses(fleet: Fleet) -> list[str]:
    return [member.address for member in fleet.members]


async def test_every_replica_must_acknowledge_the_version_and_the_hash() -> None:
    async with fleet_of(Replica(), Replica()) as fleet:
        assert await fleet.load(ADAPTER) == 0.5
        with pytest.raises(TandemError, match=r"acknowledged version 4 \(ab\), not 4 \(other\)"):
            await fleet.load(replace(ADAPTER, sha256="other"))
    async with fleet_of(Replica(), Replica(served=3)) as fleet:
        with pytest.raises(TandemError, match=r"acknowledged version 3 \(ab\), not 4"):
            await fleet.load(ADAPTER)


async def test_replicas_whose_probes_are_apart_do_not_serve_one_policy() -> None:
    async with fleet_of(Replica(probe=-1.5), Replica(probe=-1.5005)) as fleet:
        await fleet.load(ADAPTER)
    async with fleet_of(Replica(probe=-1.5), Replica(probe=-1.6)) as fleet:
        other, one = fleet.members
        with pytest.raises(TandemError) as raised:
            await fleet.load(ADAPTER)
        assert f"version 4: {one} and {other} serve different policies" in str(raised.value)
        assert "is -1.600000 and -1.500000" in str(raised.value)


@pytest.mark.parametrize(
    ("odd", "why"),
    [
        (Replica(probe=-1.6), "serves another policy than most: the probe's logprob is -1.600000 there and -1.5"),
        (Replica(served=3), r"acknowledged version 3"),
        (Replica(no_store=DataCorrupt("manifest.json: not its checksum")), "not its checksum"),
        (Replica(no_store=UserError("/dev/shm is full")), "is full"),
        (Replica(no_store=Unavailable("the engine is dead")), "the engine is dead"),
        (Replica(no_store=StaleRequest("this is rollout 7")), "this is rollout 7"),
    ],
)
async def test_one_that_is_not_as_most_are_is_lost_and_not_the_run(odd: Replica, why: str) -> None:
    fine = [Replica(), Replica()]
    async with fleet_of(fine[0], odd, fine[1]) as fleet:
        first, second, third = addresses(fleet)
        await fleet.load(ADAPTER)
        assert addresses(fleet) == [first, third]
        ((member, problem),) = fleet.lost
        assert member.address == second and why in str(problem)


async def test_a_newcomer_serves_what_all_serve_before_it_gets_work() -> None:
    async with fleet_of(Replica()) as fleet, at(Replica(), Replica(probe=-1.6), Replica(served=3)) as more:
        await fleet.load(ADAPTER)
        fine, off, stale = more.members(first=1)
        await fleet.admit(fine)
        assert fleet.members[1] == fine and more.replicas[0].loads == ["/x"]
        with pytest.raises(TandemError, match=r"rollout 2 .* serves another policy than the others: .* -1.600000"):
            await fleet.admit(off)
        with pytest.raises(TandemError, match="acknowledged version 3"):
            await fleet.admit(stale)
        await fleet.sleep()
        fleet.lose(fine.identity)
        await fleet.admit(fine)
        assert more.replicas[0].calls == ["wake", "load", "sleep", "wake", "load", "sleep"]  # the others sleep, too
        assert len(fleet.members) == 2 and fleet.lost == []


async def test_a_newcomer_that_takes_long_holds_up_nobody_and_serves_what_they_serve_by_then() -> None:
    class Slow(Replica):
        def __init__(self) -> None:
            super().__init__()
            self.begun, self.go_on = asyncio.Event(), asyncio.Event()

        async def Wake(self, request, context):
            self.begun.set()
            await self.go_on.wait()
            return await super().Wake(request, context)

    slow = Slow()
    async with fleet_of(Replica()) as fleet, at(slow) as more:
        await fleet.load(replace(ADAPTER, url="/w"))
        coming = asyncio.create_task(fleet.admit(more.members(first=1)[0]))
        await slow.begun.wait()
        async with asyncio.timeout(30):
            await fleet.load(ADAPTER)
            await fleet.sleep()
        slow.go_on.set()
        await coming
        assert slow.calls == ["wake", "load", "wake", "load", "sleep"] and slow.loads == ["/w", "/x"]
        assert len(fleet.members) == 2


async def test_the_next_generation_takes_its_place_and_none_before_it() -> None:
    async with fleet_of(Replica(), Replica()) as fleet, at(Replica()) as more:
        (member,) = more.members(first=0)
        newer = replace(member, identity=replace(member.identity, generation=2))
        await fleet.admit(newer)
        assert [m.identity.generation for m in fleet.members] == [2, 1]
        with pytest.raises(StaleRequest, match=r"generation 2\) .* is there already"):
            await fleet.admit(member)
        fleet.lose(member.identity)  # news of the one before it
        assert len(fleet.members) == 2


async def test_an_adapter_waits_for_someone_to_serve_it() -> None:
    async with fleet_of(Replica(no_store=Unavailable("gone")), patience_s=20) as fleet, at(Replica()) as more:
        fleet.when_lost = lambda: fleet.admit(more.members(first=1)[0])
        await fleet.load(ADAPTER)
        assert more.replicas[0].loads == ["/x"]
    async with fleet_of(Replica(no_store=Unavailable("gone"))) as fleet:
        with pytest.raises(Unavailable, match=r"no rollout replica is left, .*rollout 0 .* was lost: .*gone"):
            await fleet.load(ADAPTER)


PUSHED = Pushed(2, "{}")
NOT_YET = AdapterRef(4, "", "", "adapter v4", "base-a", 0)


async def test_who_did_not_get_what_was_sent_loads_what_was_published(caplog: pytest.LogCaptureFixture) -> None:
    took, lost, missed = Replica(), Replica(no_push=NotFound("no shard of rank 1 of 2 has come")), Replica()
    async with fleet_of(took, lost, missed) as fleet, at(Replica()) as more:
        third = fleet.members[2]
        loaded = await fleet.load_pushed(NOT_YET, PUSHED, {third.address: "learner rank 0: gone"})
        await fleet.admit(more.members(first=3)[0])  # between the two
        await fleet.settle(ADAPTER, loaded)
        with pytest.raises(TandemError, match=r"acknowledged version 4 \(ab\), not 4 \(other\)"):
            await fleet.settle(replace(ADAPTER, sha256="other"), loaded)
        assert more.replicas[0].loads == ["/x", "/x"]
    assert (took.loads, lost.loads, missed.loads) == (["pushed"], ["pushed", "/x", "/x"], ["/x", "/x"])
    told = [record.getMessage() for record in caplog.records]
    assert f"{third} did not get tandem-v4 directly: learner rank 0: gone; it loads it from the store" in told


async def test_one_that_can_load_it_in_neither_way_is_told_with_both_reasons() -> None:
    bad = DataCorrupt("adapter tandem-v4: the policy is still the base model's")
    async with fleet_of(Replica(), Replica(no_push=Unavailable("busy"), no_store=bad)) as fleet:
        loaded = await fleet.load_pushed(NOT_YET, PUSHED, {})
        with pytest.raises(DataCorrupt, match=r"from the store: .*still the base model's; nor directly: .*busy"):
            await fleet.settle(ADAPTER, loaded)


async def test_all_must_have_one_base_model() -> None:
    async with fleet_of(Replica()) as fleet:
        await fleet.check("base-a")
        with pytest.raises(UserError, match="has base model base-a, the learner base-b"):
            await fleet.check("base-b")
