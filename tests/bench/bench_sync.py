"""A new adapter of Qwen3-VL-8B's shape (rank 32, all language linears), from the learner's export to the last replica's
acknowledgement: by the store (`sync.transport: shared_fs`), directly (`grpc`), and the bare copy of as many files.

Everything is real (processes, gRPC, checkpoint manager, the replicas' service, the controller's functions) but the
engines, which read the file and serve nothing: see `sync_sides`. One machine plays all nodes, so that the replicas
share its cores and its memory's bandwidth; the floor is the copy of all bytes by as many threads as there are cores.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tandem.config import Config, RolloutConfig
from tandem.rpc.clients import CheckpointClient, RolloutClient
from tandem.types import AdapterRef, Exported, PublishKind, ShardRef
from tandem_checkpoint_manager.main import start as start_manager
from tandem_controller.fleet import Fleet
from tandem_controller.services import Services, publish, push
from tests.bench.report import show
from tests.bench.sync_sides import ADAPTER_CONFIG, BASE, RANKS, write_base
from tests.members import numbered

REPLICAS = [int(number) for number in os.environ.get("SYNC_REPLICAS", "1,4,16").split(",")]
REPEATS = int(os.environ.get("SYNC_REPEATS", "3"))
MEMORY = Path("/dev/shm")
BARE = AdapterRef(0, "", "", "", "", 0)
SIZES = {"bfloat16": 175e6, "float32": 349e6}
DTYPES = os.environ.get("SYNC_DTYPES", "bfloat16,float32").split(",")


class Ranks:
    """The learner's side as the controller sees it: the rank processes, told by lines of JSON."""

    def __init__(self, processes: Sequence[asyncio.subprocess.Process]) -> None:
        self.processes = processes
        self.dtype = ""

    async def push(self, version: int, kind: PublishKind, manager: str, replicas: Sequence[str]) -> Exported:
        order = json.dumps({"version": version, "dtype": self.dtype, "to": [manager, *replicas]}) + "\n"
        for process in self.processes:
            process.stdin.write(order.encode())  # type: ignore[union-attr]
        answers = [json.loads(await process.stdout.readline()) for process in self.processes]  # type: ignore[union-attr]
        shards = tuple(ShardRef(**{**answer["shard"], "kind": kind}) for answer in answers)
        return Exported(shards, {k: v for answer in answers for k, v in answer["missed"].items()})

    async def export(self, version: int, kind: PublishKind, manager: str) -> tuple[ShardRef, ...]:
        return (await self.push(version, kind, manager, ())).shards


@asynccontextmanager
async def side(*arguments: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, dict[str, Any]]]:
    """One of `sync_sides`' processes, and what it says first."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.bench.sync_sides",
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=2**24,
    )
    try:
        yield process, json.loads(await process.stdout.readline())  # type: ignore[union-attr]
    finally:
        process.stdin.close()  # type: ignore[union-attr]
        await process.wait()


def copied(source: Path, times: int) -> None:
    """Copy a file so often, to files in memory, with a thread for each core."""

    def copy(number: int) -> None:
        target = MEMORY / f"bench-sync-{os.getpid()}-{number}"
        shutil.copyfile(source, target)
        target.unlink()

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        list(threads.map(copy, range(times)))


async def seconds(work: Awaitable[Any]) -> float:
    began = time.perf_counter()
    await work
    return time.perf_counter() - began


async def by_store(services: Services, version: int) -> None:
    """As the controller does by the store."""
    adapter = await publish(services, PublishKind.ADAPTER, version)
    await services.fleet.load(adapter)


def free_bytes() -> int:
    """What can still be taken of this machine's memory."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("MemAvailable")).split()[1])


@pytest.mark.timeout(3600)
async def test_by_the_store_against_directly(tmp_path: Path) -> None:
    write_base(tmp_path / "base")
    made = {"model": {"path": str(tmp_path / "base")}, "checkpoint": {"url": str(tmp_path / "store"), "keep": 1}}
    manager = await start_manager(Config.model_validate(made))
    async with AsyncExitStack() as stack:
        replica = ("replica", str(tmp_path / "base"), str(MEMORY))
        started = [await stack.enter_async_context(side(*replica)) for _ in range(max(REPLICAS))]
        addresses = [said["address"] for _, said in started]
        ranks = Ranks([(await stack.enter_async_context(side("rank", str(n))))[0] for n in range(RANKS)])
        checkpoints, version = CheckpointClient(manager.address), 0
        for ranks.dtype in DTYPES:
            for number in REPLICAS:
                fleet = Fleet(RolloutConfig(), 1e-3, lambda member: RolloutClient(member.address))
                for member in numbered(addresses[:number]):
                    await fleet.admit(member)
                services = Services(fleet, ranks, checkpoints, ADAPTER_CONFIG, BASE)  # type: ignore[arg-type]
                version = await _measure(services, ranks.dtype, number, version)
                await fleet.close()
        await checkpoints.close()
    await manager.stop()


async def _measure(services: Services, dtype: str, number: int, version: int) -> int:
    """Print the table of one size and number of replicas; returns the last version made."""
    name = f"sync of {SIZES[dtype] / 1e6:.0f} MB to {number} replicas, engines that only read the file"
    if free_bytes() < (needed := int(2.5 * number * SIZES[dtype]) + 2 * 2**30):
        print(f"{name}: left out, it takes {needed / 2**30:.1f} GiB of memory and {free_bytes() / 2**30:.1f} are free")
        return version
    sides: dict[str, list[float]] = {"shared_fs": [], "grpc": [], "floor: bare copies": []}
    for repeat in range(REPEATS + 1):
        stored = await seconds(by_store(services, version + 1))
        await services.fleet.load(BARE)
        direct = await seconds(push(services, version + 2))
        await services.fleet.load(BARE)
        version += 2
        latest, _ = await services.checkpoints.get(PublishKind.ADAPTER)
        assert latest.version == version
        bare = await seconds(asyncio.to_thread(copied, Path(latest.url) / "adapter_model.safetensors", number))
        if repeat:  # the first round warms up
            for values, figure in zip(sides.values(), (stored, direct, bare), strict=True):
                values.append(figure)
    show(name, "s", sides)
    return version
