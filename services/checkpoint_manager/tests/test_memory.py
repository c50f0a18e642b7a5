"""Joining grows the manager by a few pieces, whatever the adapter's size; and it needs no torch."""

from __future__ import annotations

import asyncio
import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tandem.rpc.clients import CheckpointClient
from tandem.storage import CHUNK_BYTES, Placement, ShardMeta
from tandem.storage.tensors import layout
from tandem.types import PublishKind, ShardRef

STATE = PublishKind.STATE

GROWTH = """
import hashlib, json, os, sys
from tandem.storage import Placement, Retention, ShardMeta
from tandem.types import PublishKind, ShardRef
from tandem_checkpoint_manager.core import CheckpointManager

ROWS, COLUMNS, LAYERS, WORLD = 1024, 2048, 24, 3  # 24 tensors of 8 MiB: 192 MiB

def shard(rank):  # yields a shard's bytes piece by piece, so that the test does not hold it either
    rows = [ROWS // WORLD + (r < ROWS % WORLD) for r in range(WORLD)]
    start, size = sum(rows[:rank]), rows[rank] * COLUMNS * 4
    names = [f"exp_avg/{n:02d}" for n in range(LAYERS)]
    places = {name: Placement((ROWS, COLUMNS), (start, 0)) for name in names}
    meta = ShardMeta(PublishKind.STATE, 1, rank, WORLD, "b", places)
    header = {"__metadata__": meta.to_metadata()} | {
        name: {"dtype": "F32", "shape": [rows[rank], COLUMNS], "data_offsets": [n * size, (n + 1) * size]}
        for n, name in enumerate(names)
    }
    text = json.dumps(header).encode()
    yield len(text).to_bytes(8, "little") + text
    for _ in range(LAYERS * rows[rank]):
        yield bytes([rank]) * (COLUMNS * 4)

def peak():
    return int(next(l for l in open("/proc/self/status") if l.startswith("VmHWM")).split()[1]) * 1024

manager = CheckpointManager(sys.argv[1], Retention(1))
before = peak()
for rank in range(WORLD):
    digest, size = hashlib.sha256(), 0
    for piece in shard(rank):
        digest.update(piece)
        size += len(piece)
    manager.put(ShardRef(PublishKind.STATE, 1, rank, WORLD, digest.hexdigest(), size), shard(rank))
ref = manager.publish(PublishKind.STATE, 1, world_size=WORLD, base_model="b")
print(json.dumps({"growth": peak() - before, "size": ref.size}))
"""


def run(code: str, *arguments: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], check=True, capture_output=True, text=True, timeout=120
    ).stdout


def test_memory_does_not_grow_with_the_adapter(tmp_path: Path) -> None:
    figures = json.loads(run(GROWTH, str(tmp_path)))
    assert figures["size"] > 192 * 2**20
    assert figures["growth"] < 32 * 2**20


def test_the_service_imports_neither_torch_nor_anything_as_heavy() -> None:
    code = "import sys, tandem_checkpoint_manager.main, tandem_checkpoint_manager.__main__; print(*sys.modules)"
    loaded = set(run(code).split())
    assert "tandem_checkpoint_manager.core" in loaded
    assert not loaded & {"torch", "transformers", "vllm", "peft", "ray", "numpy", "pandas", "botocore"}


def status(pid: int, what: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(what)).split()[1]) * 1024


@contextmanager
def served(folder: Path) -> Iterator[tuple[int, str]]:
    """A manager in a process of its own: its id and address."""
    recipe = folder / "recipe.yaml"
    recipe.write_text(f"model: {{path: m}}\ncheckpoint: {{url: {folder / 'store'}}}\n")
    command = [sys.executable, "-m", "tandem_checkpoint_manager", str(recipe), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        yield process.pid, json.loads(process.stdout.readline())["address"]
        process.terminate()


async def test_memory_does_not_grow_with_the_ranks_that_send_at_once(tmp_path: Path) -> None:
    ranks, columns = 64, 2**20  # a row of 4 MiB each: 256 MiB
    row = [bytes([1]) * CHUNK_BYTES] * (4 * columns // CHUNK_BYTES)

    def shard(rank: int, version: int) -> tuple[ShardRef, bytes]:
        meta = ShardMeta(STATE, version, rank, ranks, "b", {"w": Placement((ranks, columns), (rank, 0))})
        head, _ = layout({"w": ("F32", (1, columns))}, meta.to_metadata())
        digest = hashlib.sha256(head)
        for piece in row:
            digest.update(piece)
        return ShardRef(STATE, version, rank, ranks, digest.hexdigest(), len(head) + 4 * columns), head

    async def send(rank: int, version: int) -> None:
        ref, head = await asyncio.to_thread(shard, rank, version)
        client = CheckpointClient(address)
        await client.put_shard(ref, [head, *row])
        await client.close()

    with served(tmp_path) as (pid, address):
        before = status(pid, "VmRSS")
        await asyncio.gather(*(send(rank, 1) for rank in range(ranks)))
        client = CheckpointClient(address)
        await asyncio.gather(  # and the next while the first is published
            client.publish(STATE, 1, world_size=ranks, base_model="b"), *(send(rank, 2) for rank in range(ranks))
        )
        await client.close()
        grown = status(pid, "VmHWM") - before
    assert grown < 64 * 2**20
