"""What is beyond a server's limits is refused in words, and what it holds meanwhile is bounded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tandem.rpc import server
from tandem.rpc.clients import CheckpointClient
from tandem.rpc.gen.checkpoint.v1 import checkpoint_pb2, checkpoint_pb2_grpc
from tandem.types import PublishKind, Unavailable, UserError

SERVICE = "tandem.checkpoint.v1.CheckpointService"


class Checkpoint(checkpoint_pb2_grpc.CheckpointServiceServicer):
    def __init__(self) -> None:
        self.waiting, self.go_on = 0, asyncio.Event()
        self.story = ""

    async def GetStatus(self, request, context):
        self.waiting += 1
        await self.go_on.wait()
        return checkpoint_pb2.GetStatusResponse(url="/store")

    async def GetAdapter(self, request, context):
        raise UserError(self.story)


@asynccontextmanager
async def serving(servicer: Checkpoint) -> AsyncIterator[CheckpointClient]:
    running = await server.serve(
        lambda s: checkpoint_pb2_grpc.add_CheckpointServiceServicer_to_server(servicer, s), [SERVICE]
    )
    client = CheckpointClient(running.address)
    yield client
    await client.close()
    await running.stop(0)


async def test_more_calls_than_a_server_takes_may_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MOST_CALLS", 2)
    servicer = Checkpoint()
    async with serving(servicer) as client:
        taken = [asyncio.ensure_future(client.status()) for _ in range(2)]
        while servicer.waiting < 2:
            await asyncio.wait(taken, timeout=0.05)
        with pytest.raises(Unavailable, match="RESOURCE_EXHAUSTED: Concurrent RPC limit"):
            await client.status()
        servicer.go_on.set()
        assert [status.url for status in await asyncio.gather(*taken)] == ["/store"] * 2
        assert (await client.status()).url == "/store"


async def test_more_connections_than_a_server_takes_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    options = [(key, 4 if key == "grpc.max_allowed_incoming_connections" else value) for key, value in server.OPTIONS]
    monkeypatch.setattr(server, "OPTIONS", options)
    servicer = Checkpoint()
    servicer.go_on.set()
    async with serving(servicer) as client:
        await client.status()  # the first
        host, _, port = client.peer.address.rpartition(":")
        opened = [await asyncio.open_connection(host, int(port)) for _ in range(8)]
        reads = [asyncio.ensure_future(reader.read()) for reader, _ in opened]  # of one that is kept: SETTINGS, and on
        while sum(reading.done() for reading in reads) < 4:
            await asyncio.wait(reads, timeout=0.05)
        assert (await client.status()).url == "/store"
        for reading in reads:
            reading.cancel()
        for _, writer in opened:
            writer.close()


@pytest.mark.parametrize("word", ["no ", "né ", "\n\0\x7f", "\U0001f40d\U0001f5fa "])
async def test_a_long_story_is_cut_short(word: str) -> None:
    servicer = Checkpoint()
    servicer.story = word * 100_000
    async with serving(servicer) as client:
        with pytest.raises(UserError, match=r"\(300000 characters\)$") as caught:
            await client.get(PublishKind.ADAPTER)
        assert len(str(caught.value)) < 5000 and str(caught.value).startswith(word * 3)


async def test_a_message_that_its_method_does_not_need() -> None:
    async with serving(Checkpoint()) as client:
        with pytest.raises(UserError, match=r"GetAdapter: a message of \d+ bytes came; 4096 are the most"):
            call = client.stub.GetAdapter
            request = checkpoint_pb2.GetAdapterRequest.FromString(b"\x7a\xff\x7f" + b"x" * 16383)  # an unknown field
            await client.peer.unary(call, request, 5)
