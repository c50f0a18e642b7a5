"""The fleet against real gRPC servers: seeds are dealt out, groups come back in order, wrong answers are noticed."""

from dataclasses import replace

import pytest
from replicas import Replica, fleet_of

from tandem.types import (
    AdapterRef,
    ContextPolicy,
    DataCorrupt,
    NotFound,
    Pushed,
    RolloutTask,
    Sampling,
    TandemError,
    Unavailable,
    UserError,
)
from tandem_controller.fleet import GRACE_S

TASK = RolloutTask("e", (5, 3, 9, 1, 7), 2, 0, Sampling(), ContextPolicy(), 3, 0)


async def test_seeds_are_dealt_evenly_and_groups_come_back_by_seed() -> None:
    first, second = Replica(), Replica()
    seen: list[int] = []
    async with fleet_of(first, second) as fleet:
        groups = await fleet.play(TASK, lambda group: seen.append(group.seed))
    assert [group.seed for group in groups] == [1, 3, 5, 7, 9]
    assert (first.asked, second.asked) == ([5, 9, 7], [3, 1])
    assert sorted(seen) == [1, 3, 5, 7, 9]


async def test_a_group_that_never_comes_is_noticed() -> None:
    async with fleet_of(Replica(), Replica(lost=3)) as fleet:
        with pytest.raises(TandemError, match="asked for 5 groups, 4 came back"):
            await fleet.play(TASK)


async def test_every_replica_must_acknowledge_the_version_and_the_hash() -> None:
    adapter = AdapterRef(4, "/x", "ab", "tandem-v4", "base-a", 1)
    async with fleet_of(Replica(), Replica()) as fleet:
        assert await fleet.load(adapter) == 0.5
        with pytest.raises(TandemError, match=r"acknowledged version 4 \(ab\), not 4 \(other\)"):
            await fleet.load(AdapterRef(4, "/x", "other", "tandem-v4", "base-a", 1))
    async with fleet_of(Replica(), Replica(served=3)) as fleet:
        with pytest.raises(TandemError, match=r"acknowledged version 3 \(ab\), not 4"):
            await fleet.load(adapter)


async def test_replicas_whose_probes_are_apart_do_not_serve_one_policy() -> None:
    adapter = AdapterRef(4, "/x", "ab", "tandem-v4", "base-a", 1)
    async with fleet_of(Replica(probe=-1.5), Replica(probe=-1.5005)) as fleet:
        await fleet.load(adapter)
    async with fleet_of(Replica(probe=-1.5), Replica(probe=-1.6)) as fleet:
        other, one = (replica.peer.name for replica in fleet.replicas)
        with pytest.raises(TandemError, match=f"version 4: {one} and {other} serve different policies: .* -1.600000"):
            await fleet.load(adapter)


PUSHED = Pushed(2, "{}")
NOT_YET = AdapterRef(4, "", "", "adapter v4", "base-a", 0)
PUBLISHED = AdapterRef(4, "/x", "ab", "tandem-v4", "base-a", 1)


async def test_who_did_not_get_what_was_sent_loads_what_was_published(caplog: pytest.LogCaptureFixture) -> None:
    took, lost, missed = Replica(), Replica(no_push=NotFound("no shard of rank 1 of 2 has come")), Replica()
    async with fleet_of(took, lost, missed) as fleet:
        address = fleet.replicas[2].peer.address
        loaded = await fleet.load_pushed(NOT_YET, PUSHED, {address: "learner rank 0: gone"})
        await fleet.settle(PUBLISHED, loaded)
        with pytest.raises(TandemError, match=r"acknowledged version 4 \(ab\), not 4 \(other\)"):
            await fleet.settle(replace(PUBLISHED, sha256="other"), loaded)
    assert (took.loads, lost.loads, missed.loads) == (["pushed"], ["pushed", "/x", "/x"], ["/x", "/x"])
    told = [record.getMessage() for record in caplog.records]
    assert (
        f"rollout at {address} did not get tandem-v4 directly: learner rank 0: gone; it loads it from the store" in told
    )


async def test_one_that_can_load_it_in_neither_way_is_told_with_both_reasons() -> None:
    bad = DataCorrupt("adapter tandem-v4: the policy is still the base model's")
    async with fleet_of(Replica(), Replica(no_push=Unavailable("busy"), no_store=bad)) as fleet:
        loaded = await fleet.load_pushed(NOT_YET, PUSHED, {})
        with pytest.raises(DataCorrupt, match=r"from the store: .*still the base model's; nor directly: .*busy"):
            await fleet.settle(PUBLISHED, loaded)


async def test_all_must_have_one_base_model() -> None:
    async with fleet_of(Replica()) as fleet:
        await fleet.check("base-a")
        with pytest.raises(UserError, match="has base model base-a, the learner base-b"):
            await fleet.check("base-b")


@pytest.mark.parametrize(("groups", "size", "waves"), [(17, 1, 3), (8, 2, 2), (1, 17, 3), (2, 5, 2), (5, 3, 3)])
async def test_the_calls_deadline_leaves_each_wave_of_episodes_its_own(groups: int, size: int, waves: int) -> None:
    """On 8 seats: 17 episodes are 3 waves of 10 s each; 2 groups of 5 are 2, where groups are played whole."""
    async with fleet_of(Replica()) as fleet:
        assert fleet.timeout_s(groups, size) == 10 * waves + GRACE_S
