"""Real processes: learner ranks and a checkpoint manager, as a person would start them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass

from tandem.rpc.clients import LearnerClient
from tandem.rpc.ports import held_address
from tandem.runtime import deadline

START_S = 300
STOP_S = 60


@dataclass(frozen=True)
class Learner:
    """Rank processes, and a client of rank 0."""

    client: LearnerClient
    ranks: tuple[asyncio.subprocess.Process, ...]
    address: str


@asynccontextmanager
async def learner(recipe: str, world_size: int = 1, *overrides: str) -> AsyncIterator[Learner]:
    """Start all ranks, each with the last overrides; end them in order."""
    async with AsyncExitStack() as stack:
        rendezvous = stack.enter_context(held_address()) if world_size > 1 else ""
        starting = [
            stack.enter_async_context(
                service(
                    "tandem_learner",
                    recipe,
                    f"learner.world_size={world_size}",
                    *overrides,
                    *(["--rank", str(rank), "--rendezvous", rendezvous] if rendezvous else []),
                )
            )
            for rank in range(world_size)
        ]
        # one after the other would wait for ever: a rank is up when all are
        started = await _together(starting)
        client = LearnerClient(started[0][1])
        stack.push_async_callback(client.close)
        yield Learner(client, tuple(process for process, _ in started), started[0][1])


@asynccontextmanager
async def service(module: str, *arguments: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """A process and the address it says it listens at (empty for one that serves nothing)."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", module, *arguments, stdout=asyncio.subprocess.PIPE, env=dict(os.environ)
    )
    assert process.stdout is not None
    try:
        async with deadline(START_S, f"start of {module}"):
            line = await process.stdout.readline()
        assert line, f"{module} ended with {await process.wait()}"
        yield process, json.loads(line)["address"]
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        try:
            async with deadline(STOP_S, f"end of {module}"):
                await process.wait()
        finally:
            if process.returncode is None:
                process.kill()


@asynccontextmanager
async def deaf_peer() -> AsyncIterator[tuple[str, asyncio.Event]]:
    """host:port of a peer that takes connections and says nothing, and an event of the first one."""
    called = asyncio.Event()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        called.set()
        with suppress(asyncio.CancelledError):  # at the end of the test
            await reader.read()
        writer.close()

    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    yield f"{host}:{port}", called
    server.close()


async def _together(starting: Sequence) -> list[tuple[asyncio.subprocess.Process, str]]:
    return list(await asyncio.gather(*starting))
