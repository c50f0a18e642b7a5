"""The fleet against real gRPC servers: seeds are dealt out, groups come back in order, wrong answers are noticed."""

import pytest
from replicas import Replica, fleet_of

from tandem.types import AdapterRef, ContextPolicy, RolloutTask, Sampling, TandemError, UserError
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
