"""The fleet against real gRPC servers: seeds are dealt out, groups come back in order, wrong answers are noticed."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tandem.config import RolloutConfig
from tandem.rpc import codec
from tandem.rpc.gen.rollout.v1 import rollout_pb2, rollout_pb2_grpc
from tandem.rpc.server import serve
from tandem.types import AdapterRef, ContextPolicy, RolloutTask, Sampling, TandemError, TrajectoryGroup, UserError
from tandem_controller.fleet import GRACE_S, Fleet

TASK = RolloutTask("e", (5, 3, 9, 1, 7), 2, 0, Sampling(), ContextPolicy(), 3, 0)


class Replica(rollout_pb2_grpc.RolloutServiceServicer):
    """A peer that speaks the protocol; `lost` seeds never come back, `served` is what it claims to serve."""

    def __init__(self, lost: int = -1, served: int = 4) -> None:
        self.lost, self.served = lost, served
        self.asked: list[int] = []

    async def Rollout(self, request, context):
        self.asked += request.seeds
        for seed in reversed(request.seeds):
            if seed != self.lost:
                group = TrajectoryGroup(f"g{seed}", request.env, seed, 0, (), {})
                yield rollout_pb2.RolloutResponse(group=codec.encode_group(group))

    async def LoadAdapter(self, request, context):
        return rollout_pb2.LoadAdapterResponse(policy_version=self.served, sha256="ab", seconds=0.5)

    async def GetStatus(self, request, context):
        return rollout_pb2.GetStatusResponse(healthy=True, base_model="base-a")


@asynccontextmanager
async def fleet_of(*replicas: Replica) -> AsyncIterator[Fleet]:
    servers = [
        await serve(lambda server, r=r: rollout_pb2_grpc.add_RolloutServiceServicer_to_server(r, server), [])
        for r in replicas
    ]
    fleet = Fleet(
        [server.address for server in servers], RolloutConfig(max_concurrent_episodes=8, episode_timeout_s=10)
    )
    try:
        yield fleet
    finally:
        await fleet.close()
        for server in servers:
            await server.stop(0)


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


async def test_the_calls_deadline_leaves_each_wave_of_episodes_its_own() -> None:
    async with fleet_of(Replica()) as fleet:
        # 17 episodes on 8 seats are 3 waves of 10 s each
        assert fleet.timeout_s(17) == 30 + GRACE_S
