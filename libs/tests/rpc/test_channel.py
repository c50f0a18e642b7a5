"""Every call is kept among what this process waits for, in words, until it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc
import pytest
import pytest_asyncio

from tandem.rpc.channel import in_words
from tandem.rpc.clients import RolloutClient
from tandem.rpc.gen.checkpoint.v1 import checkpoint_pb2 as cpb
from tandem.rpc.gen.common.v1 import common_pb2
from tandem.rpc.gen.learner.v1 import learner_pb2 as lpb
from tandem.rpc.gen.rollout.v1 import rollout_pb2 as rpb
from tandem.rpc.gen.rollout.v1 import rollout_pb2_grpc
from tandem.rpc.server import serve
from tandem.runtime import WAITS
from tandem.types import ContextPolicy, PublishKind, Role, RolloutTask, Sampling, ShardRef, Unavailable


class Gated(rollout_pb2_grpc.RolloutServiceServicer):
    """Answers when the test says so."""

    def __init__(self) -> None:
        self.asked, self.gate = asyncio.Event(), asyncio.Event()

    async def Rollout(self, request, context):
        yield rpb.RolloutResponse()
        await self.gate.wait()

    async def Wake(self, request, context):
        self.asked.set()
        await self.gate.wait()
        return rpb.WakeResponse()

    async def PutShard(self, request_iterator, context):
        parts = [part async for part in request_iterator]
        return rpb.PutShardResponse(shard=parts[0].header.shard)

    async def GetStatus(self, request, context):
        self.asked.set()
        await self.gate.wait()
        return rpb.GetStatusResponse()


@pytest_asyncio.fixture
async def gated() -> AsyncIterator[tuple[Gated, RolloutClient]]:
    """A replica and its client."""
    replica = Gated()
    running = await serve(
        lambda server: rollout_pb2_grpc.add_RolloutServiceServicer_to_server(replica, server),
        ["tandem.rollout.v1.RolloutService"],
    )
    client = RolloutClient(running.address)
    yield replica, client
    await client.close()
    await running.stop(0)


def mine(client: RolloutClient) -> list[tuple[str, Role | None]]:
    """What is waited for from that client's service."""
    return [(wait.what, wait.role) for wait in WAITS.now() if wait.address == client.peer.address]


async def test_a_call_is_waited_for_until_it_ends(gated: tuple[Gated, RolloutClient]) -> None:
    replica, client = gated
    call = asyncio.create_task(client.wake())
    await replica.asked.wait()
    assert mine(client) == [("Wake", Role.ROLLOUT)]
    before = WAITS.moved
    replica.gate.set()
    await call
    assert mine(client) == [] and WAITS.moved > before


async def test_each_part_of_a_stream_is_progress(gated: tuple[Gated, RolloutClient]) -> None:
    replica, client = gated
    before = WAITS.moved
    parts = client.peer.stream(client.stub.Rollout, rpb.RolloutRequest(policy_version=7), 30)
    await anext(parts)
    assert mine(client) == [("Rollout v7", Role.ROLLOUT)] and WAITS.moved > before
    replica.gate.set()
    assert [part async for part in parts] == [] and mine(client) == []


async def test_each_part_that_is_sent_is_progress(gated: tuple[Gated, RolloutClient]) -> None:
    _, client = gated
    before = WAITS.work
    await client.put_shard(ShardRef(PublishKind.ADAPTER, 1, 0, 1, "", 3), (b"a", b"b", b"c"))
    assert WAITS.work >= before + 5  # a header, three chunks and the answer


async def test_a_call_that_fails_is_no_progress(gated: tuple[Gated, RolloutClient]) -> None:
    _, client = gated
    before = WAITS.moved
    with pytest.raises(Unavailable):
        await client.wake(timeout_s=0.05)
    task = RolloutTask("e", (1,), 2, 0, Sampling(), ContextPolicy(), 3, 0)
    await client.close()
    with pytest.raises((Unavailable, grpc.aio.UsageError)):  # its channel is closed
        [group async for group in client.rollout(task)]
    assert mine(client) == [] and WAITS.moved == before


async def test_asking_how_it_fares_is_neither(gated: tuple[Gated, RolloutClient]) -> None:
    replica, client = gated
    before = WAITS.moved
    call = asyncio.create_task(client.status())
    await replica.asked.wait()
    assert mine(client) == []
    replica.gate.set()
    await call
    assert WAITS.moved == before


def test_requests_in_words() -> None:
    header = lpb.TrainStepHeader(expected_version=12)
    assert in_words([lpb.TrainStepRequest(header=header), lpb.TrainStepRequest()]) == "TrainStep v12"
    assert in_words(cpb.PublishRequest(version=3)) == "Publish v3"
    assert in_words(rpb.LoadAdapterRequest(adapter=common_pb2.AdapterRef(version=5))) == "LoadAdapter v5"
    assert in_words(lpb.SnapshotRequest(expected_version=0)) == "Snapshot"
    assert in_words(part for part in ()) == "a stream"


async def test_a_call_on_a_channel_that_is_closed_is_unavailable(gated: tuple[Gated, RolloutClient]) -> None:
    _, client = gated
    await client.close()
    task = RolloutTask("e", (1,), 2, 0, Sampling(), ContextPolicy(), 3, 0)
    with pytest.raises(Unavailable, match="its channel was closed"):
        await client.wake()
    with pytest.raises(Unavailable, match="its channel was closed"):
        await client.put_shard(ShardRef(PublishKind.ADAPTER, 1, 0, 1, "ab", 3), [b"abc"])
    with pytest.raises(Unavailable, match="its channel was closed"):
        [group async for group in client.rollout(task, 10)]
