"""A real server and real clients: errors keep their kind, stock services answer, versions must match."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
import pytest_asyncio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from tandem.rpc.clients import CheckpointClient, RolloutClient
from tandem.rpc.gen.checkpoint.v1 import checkpoint_pb2, checkpoint_pb2_grpc
from tandem.rpc.gen.rollout.v1 import rollout_pb2, rollout_pb2_grpc
from tandem.rpc.server import RunningServer, serve
from tandem.types import (
    ContextPolicy,
    DataCorrupt,
    NotFound,
    PublishKind,
    RolloutTask,
    Sampling,
    ShardRef,
    StaleRequest,
    TandemError,
    Unavailable,
    UserError,
)

SERVICES = ("tandem.rollout.v1.RolloutService", "tandem.checkpoint.v1.CheckpointService")
RAISED = {kind.__name__: kind for kind in (UserError, StaleRequest, NotFound, DataCorrupt, Unavailable, ValueError)}


class Rollout(rollout_pb2_grpc.RolloutServiceServicer):
    async def Rollout(self, request, context):
        yield rollout_pb2.RolloutResponse()
        if request.env == "hang":
            await asyncio.Event().wait()
        raise RAISED[request.env](f"about {request.env}")

    async def GetStatus(self, request, context):
        await asyncio.sleep(5)


class Checkpoint(checkpoint_pb2_grpc.CheckpointServiceServicer):
    async def PutShard(self, request_iterator, context):
        parts = [part async for part in request_iterator]
        shard = parts[0].header.shard
        shard.size = sum(len(part.chunk) for part in parts[1:])
        return checkpoint_pb2.PutShardResponse(shard=shard)


def register(server: grpc.aio.Server) -> None:
    rollout_pb2_grpc.add_RolloutServiceServicer_to_server(Rollout(), server)
    checkpoint_pb2_grpc.add_CheckpointServiceServicer_to_server(Checkpoint(), server)


@pytest_asyncio.fixture
async def server() -> AsyncIterator[RunningServer]:
    running = await serve(register, SERVICES)
    yield running
    await running.stop(0)


@pytest.mark.parametrize("name", RAISED)
async def test_an_exception_reaches_the_client_as_its_own_kind(server: RunningServer, name: str) -> None:
    client = RolloutClient(server.address)
    task = RolloutTask(name, (1,), 2, 0, Sampling(), ContextPolicy(), 3, 0)
    expected = TandemError if name == "ValueError" else RAISED[name]
    with pytest.raises(expected, match=f"about {name}") as caught:
        [group async for group in client.rollout(task)]
    assert type(caught.value) is expected
    await client.close()


async def test_a_deadline_and_a_dead_server_are_unavailable(server: RunningServer) -> None:
    client = RolloutClient(server.address)
    with pytest.raises(Unavailable, match="DEADLINE_EXCEEDED"):
        await client.status(timeout_s=0.1)
    await server.stop(0)
    with pytest.raises(Unavailable, match="rollout at"):
        await client.status()
    await client.close()


async def test_a_call_whose_channel_is_closed_under_it_is_unavailable_and_its_task_not_cancelled(
    server: RunningServer,
) -> None:
    client = RolloutClient(server.address)
    task = RolloutTask("hang", (1,), 2, 0, Sampling(), ContextPolicy(), 3, 0)
    replies = client.rollout(task)
    await anext(replies)
    calls = [asyncio.ensure_future(client.status()), asyncio.ensure_future(anext(replies))]
    await asyncio.wait(calls, timeout=0.2)
    await client.close()
    for call in calls:
        with pytest.raises(Unavailable, match=r"rollout at .*: its channel was closed"):
            await call
    cancelled = asyncio.ensure_future(RolloutClient(server.address).status())
    await asyncio.wait({cancelled}, timeout=0.2)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled


async def test_whether_a_process_answers_at_all(server: RunningServer) -> None:
    client = RolloutClient(server.address)
    assert await client.peer.alive(10)
    await server.set_serving(False)  # it says that it is not well: it answers
    assert await client.peer.alive(10)
    await server.stop(0)
    assert not await client.peer.alive(10)
    await client.close()


async def test_a_client_stream_arrives_whole(server: RunningServer) -> None:
    client = CheckpointClient(server.address)
    sent = await client.put_shard(ShardRef(PublishKind.ADAPTER, 1, 0, 1, "x", 0), (b"ab", b"cde"))
    assert sent.size == 5
    await client.close()


async def test_another_protocol_version_is_refused(server: RunningServer) -> None:
    async with grpc.aio.insecure_channel(server.address) as channel:
        stub = rollout_pb2_grpc.RolloutServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError, match="client speaks protocol 99, server 1") as caught:
            await stub.GetStatus(rollout_pb2.GetStatusRequest(), metadata=(("tandem-protocol", "99"),))
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_stock_health_and_reflection_answer_without_our_metadata(server: RunningServer) -> None:
    async with grpc.aio.insecure_channel(server.address) as channel:
        health: Any = health_pb2_grpc.HealthStub(channel)
        for name in ("", *SERVICES):
            reply = await health.Check(health_pb2.HealthCheckRequest(service=name))
            assert reply.status == health_pb2.HealthCheckResponse.SERVING
        await server.set_serving(False)
        assert (
            await health.Check(health_pb2.HealthCheckRequest())
        ).status == health_pb2.HealthCheckResponse.NOT_SERVING
        asked = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
        reflection: Any = reflection_pb2_grpc.ServerReflectionStub(channel)  # pyright: ignore[reportArgumentType]
        replies = [reply async for reply in reflection.ServerReflectionInfo(asked)]
        assert {service.name for service in replies[0].list_services_response.service} >= set(SERVICES)


async def test_a_taken_port_is_one_clear_line(server: RunningServer) -> None:
    port = int(server.address.rpartition(":")[2])
    with pytest.raises(UserError, match=f"cannot listen on 127.0.0.1:{port}: taken"):
        await serve(register, SERVICES, port=port)
