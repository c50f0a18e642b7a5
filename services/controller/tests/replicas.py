"""Rollout replicas that speak the protocol over real gRPC, and play what a test says."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from tests.members import numbered

from tandem.config import RolloutConfig
from tandem.rpc import codec
from tandem.rpc.clients import RolloutClient
from tandem.rpc.gen.rollout.v1 import rollout_pb2, rollout_pb2_grpc
from tandem.rpc.server import serve
from tandem.types import FinishReason, Member, StopReason, TandemError, Trajectory, TrajectoryGroup, Turn
from tandem_controller.fleet import Fleet

LIMITS = RolloutConfig(max_concurrent_episodes=8, episode_timeout_s=10)


def turn(reward: float = 0.0, parsed: bool = True, text: str = "('move', 0)") -> Turn:
    return Turn((1,), (2,), (-0.5,), (), 0, text, "", reward, FinishReason.STOP, parsed)


def episode(member: int, solved: bool, turns: int = 1, **metrics: float) -> Trajectory:
    """One that ends as a task does: reward 1 in the last turn, or none at the limit."""
    steps = (*[turn()] * (turns - 1), turn(float(solved)))
    return Trajectory(
        member, steps, StopReason.TERMINATED if solved else StopReason.TURN_LIMIT, float(solved), metrics=metrics
    )


def lost(member: int, stop: StopReason, error: str) -> Trajectory:
    """One that ended before its first turn."""
    return Trajectory(member, (), stop, 0.0, error=error)


def nothing_played(request: rollout_pb2.RolloutRequest, seed: int) -> tuple[Trajectory, ...]:
    return ()


class Replica(rollout_pb2_grpc.RolloutServiceServicer):
    """`lost` seeds never come back, `served` is what it claims to serve, `play` what becomes of a seed; what it says
    when it is to load what was sent to it, or from the store."""

    def __init__(
        self,
        lost: int = -1,
        served: int = 4,
        play: Callable[[rollout_pb2.RolloutRequest, int], tuple[Trajectory, ...]] = nothing_played,
        no_push: TandemError | None = None,
        no_store: TandemError | None = None,
        probe: float = -1.5,
    ) -> None:
        self.lost, self.served, self.play = lost, served, play
        self.no_push, self.no_store, self.probe = no_push, no_store, probe
        self.loads: list[str] = []
        self.calls: list[str] = []
        self.asked: list[int] = []
        self.requests: list[rollout_pb2.RolloutRequest] = []

    async def Rollout(self, request, context):
        self.asked += request.seeds
        self.requests.append(request)
        for seed in reversed(request.seeds):
            if seed != self.lost:
                yield self.reply(request, seed)

    def reply(self, request, seed: int) -> rollout_pb2.RolloutResponse:
        group = TrajectoryGroup(f"g{seed}", request.env, seed, 0, self.play(request, seed), {})
        return rollout_pb2.RolloutResponse(group=codec.encode_group(group))

    async def LoadAdapter(self, request, context):
        pushed = request.HasField("pushed")
        self.calls.append("load")
        self.loads.append("pushed" if pushed else request.adapter.url)
        if problem := self.no_push if pushed else self.no_store:
            raise problem
        served = rollout_pb2.LoadAdapterResponse(policy_version=self.served, sha256="ab", seconds=0.5)
        served.probe_logprob = self.probe
        return served

    async def Wake(self, request, context):
        self.calls.append("wake")
        return rollout_pb2.WakeResponse()

    async def Sleep(self, request, context):
        self.calls.append("sleep")
        return rollout_pb2.SleepResponse()

    async def GetStatus(self, request, context):
        return rollout_pb2.GetStatusResponse(healthy=True, base_model="base-a")


@dataclass(frozen=True)
class Served:
    """Replicas that listen, not in any fleet yet."""

    replicas: tuple[Replica, ...]
    addresses: tuple[str, ...]

    def members(self, first: int) -> tuple[Member, ...]:
        """As replica `first` and those after it."""
        return numbered([""] * first + list(self.addresses))[first:]


class Watched(Fleet):
    """Notes which replicas it lost, and then starts `when_lost`."""

    def __init__(self, limits: RolloutConfig, **settings: Any) -> None:
        super().__init__(limits, 1e-3, lambda member: RolloutClient(member.address), self._note, **settings)
        self.lost: list[tuple[Member, TandemError]] = []
        self.when_lost: Callable[[], Coroutine[Any, Any, None]] | None = None
        self.replacing: list[asyncio.Task[None]] = []

    def _note(self, member: Member, problem: TandemError) -> None:
        self.lost.append((member, problem))
        if self.when_lost:
            self.replacing.append(asyncio.ensure_future(self.when_lost()))


@asynccontextmanager
async def at(*replicas: Replica) -> AsyncIterator[Served]:
    servers = [
        await serve(lambda server, r=r: rollout_pb2_grpc.add_RolloutServiceServicer_to_server(r, server), [])
        for r in replicas
    ]
    try:
        yield Served(replicas, tuple(server.address for server in servers))
    finally:
        for server in servers:
            await server.stop(0)


@asynccontextmanager
async def fleet_of(*replicas: Replica, limits: RolloutConfig = LIMITS, **settings: Any) -> AsyncIterator[Watched]:
    async with at(*replicas) as served:
        fleet = Watched(limits, **settings)
        try:
            for member in served.members(first=0):
                await fleet.admit(member)
            for replica in replicas:
                replica.calls.clear()
            yield fleet
        finally:
            await asyncio.gather(*fleet.replacing)
            await fleet.close()
