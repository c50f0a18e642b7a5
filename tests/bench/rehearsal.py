"""Rollout replicas with simulated engines, many in a process, each on a port of its own; and a fleet of them.

python -m tests.bench.rehearsal CONFIG_JSON COUNT     prints their addresses as JSON, serves until stdin closes
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tandem.config import Config
from tandem.rpc.clients import RolloutClient
from tandem_controller.fleet import Fleet
from tandem_rollout.main import start
from tests.members import numbered

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Host:
    """A process with some replicas."""

    process: asyncio.subprocess.Process
    addresses: tuple[str, ...]


@asynccontextmanager
async def host(config: Config, count: int) -> AsyncIterator[Host]:
    """Start a process with so many replicas."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.bench.rehearsal",
        config.model_dump_json(),
        str(count),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=ROOT,
        limit=2**20,
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        yield Host(process, tuple(json.loads(await process.stdout.readline())))
    finally:
        process.stdin.close()
        await process.wait()


@asynccontextmanager
async def hosts(config: Config, counts: Sequence[int]) -> AsyncIterator[tuple[Host, ...]]:
    """Several processes."""
    async with AsyncExitStack() as stack:
        yield tuple(await asyncio.gather(*(stack.enter_async_context(host(config, count)) for count in counts)))


@asynccontextmanager
async def fleet_at(config: Config, addresses: Sequence[str]) -> AsyncIterator[Fleet]:
    """The controller's fleet of these."""
    fleet = Fleet(config.rollout, 1e-3, lambda member: RolloutClient(member.address), patience_s=30)
    try:
        for member in numbered(addresses):
            await fleet.admit(member)
        yield fleet
    finally:
        await fleet.close()


@dataclass(frozen=True)
class Footprint:
    """What a process holds now."""

    rss_mib: float
    files: int
    threads: int

    def __str__(self) -> str:
        return f"{self.rss_mib:6.0f} MiB {self.files:4d} files {self.threads:3d} threads"


def footprint(pid: int | None = None) -> Footprint:
    """Of a process; of this one by default."""
    proc = Path(f"/proc/{pid or os.getpid()}")
    status = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines())
    return Footprint(
        int(status["VmRSS"].split()[0]) / 1024, len(list((proc / "fd").iterdir())), int(status["Threads"].strip())
    )


async def _serve(config: Config, count: int) -> None:
    logging.disable(logging.WARNING)
    services = [await start(config) for _ in range(count)]
    print(json.dumps([service.address for service in services]), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    for service in services:
        await service.stop()


if __name__ == "__main__":
    asyncio.run(_serve(Config.model_validate_json(sys.argv[1]), int(sys.argv[2])))
