"""Consolidation: the manager's memory and seconds beside a copy of the same bytes with the same fsync, and beside the
usual way, which gathers the full state on one rank and calls torch.save.

The shape is true: a LoRA adapter on all seven language linears of Qwen3-VL-8B. The manager is a process of its own;
shards come over real gRPC, all ranks at once.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tandem.rpc.clients import CheckpointClient
from tandem.storage import CHUNK_BYTES, Placement, ShardMeta, write_shard
from tandem.storage.tensors import layout
from tandem.types import PublishKind, ShardRef
from tests.bench.report import show

LAYERS, HIDDEN, INTERMEDIATE, KV = 36, 4096, 12288, 8 * 128
LINEARS = {  # (inputs, outputs)
    "self_attn.q_proj": (HIDDEN, HIDDEN),
    "self_attn.k_proj": (HIDDEN, KV),
    "self_attn.v_proj": (HIDDEN, KV),
    "self_attn.o_proj": (HIDDEN, HIDDEN),
    "mlp.gate_proj": (HIDDEN, INTERMEDIATE),
    "mlp.up_proj": (HIDDEN, INTERMEDIATE),
    "mlp.down_proj": (INTERMEDIATE, HIDDEN),
}
BASE, NOISE = "a" * 64, os.urandom(CHUNK_BYTES)
MIB = 2**20

USUAL = """
import os, sys, time, torch
shapes, world, path = eval(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
def peak():
    return int(next(l for l in open("/proc/self/status") if l.startswith("VmHWM")).split()[1]) * 1024
before, began = peak(), time.perf_counter()
state = {}
for name, (rows, columns) in shapes.items():
    parts = [torch.ones(len(range(rank, rows, world)), columns) for rank in range(world)]
    state[name] = torch.cat(parts)
    del parts
torch.save(state, path)
with open(path, "rb+") as file:
    os.fsync(file.fileno())
print(peak() - before, time.perf_counter() - began)
"""


def shapes(rank: int) -> dict[str, tuple[int, int]]:
    """The adapter's tensors (rows, columns)."""
    found = {}
    for layer in range(LAYERS):
        for name, (inputs, outputs) in LINEARS.items():
            module = f"base_model.model.model.language_model.layers.{layer}.{name}"
            found[f"{module}.lora_A.weight"] = (rank, inputs)
            found[f"{module}.lora_B.weight"] = (outputs, rank)
    return found


@dataclass(frozen=True)
class Shard:
    """One rank's: rows of each tensor as FSDP splits them, filled with noise."""

    ref: ShardRef
    head: bytes
    data_bytes: int

    def chunks(self) -> Iterator[bytes]:
        """The file, of which nothing is held."""
        yield self.head
        for start in range(0, self.data_bytes, CHUNK_BYTES):
            yield NOISE[: self.data_bytes - start]


def shard(whole: dict[str, tuple[int, int]], version: int, rank: int, world: int) -> Shard:
    """Made the way the learner makes it."""
    parts, places = {}, {}
    for name, (rows, columns) in whole.items():
        step = -(-rows // world)
        mine = len(range(rank * step, min(rows, (rank + 1) * step)))
        if mine:
            parts[name], places[name] = ("F32", (mine, columns)), Placement((rows, columns), (rank * step, 0))
    head, _ = layout(parts, ShardMeta(PublishKind.ADAPTER, version, rank, world, BASE, places).to_metadata())
    size = sum(4 * rows * columns for _, (rows, columns) in parts.values())
    made = Shard(ShardRef(PublishKind.ADAPTER, version, rank, world, "", len(head) + size), head, size)
    digest = hashlib.sha256()
    for chunk in made.chunks():
        digest.update(chunk)
    return Shard(ShardRef(PublishKind.ADAPTER, version, rank, world, digest.hexdigest(), len(head) + size), head, size)


@contextmanager
def manager(folder: Path) -> Iterator[tuple[int, str, str]]:
    """A manager in a process of its own: pid, address and the store's URL."""
    recipe = folder / "recipe.yaml"
    recipe.write_text(f"model: {{path: m}}\ncheckpoint: {{url: {folder / 'store'}, keep: 1}}\n")
    command = [sys.executable, "-m", "tandem_checkpoint_manager", str(recipe), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        yield process.pid, json.loads(process.stdout.readline())["address"], str(folder / "store")
        process.terminate()


def memory(pid: int, what: str) -> int:
    """VmRSS or VmHWM of a process, in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(what)).split()[1]) * 1024


def memory_now(pid: int) -> int:
    """VmRSS, from where VmHWM counts anew."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    return memory(pid, "VmRSS")


def copy_seconds(source: Path, target: Path) -> float:
    """The bare minimum: the same bytes to a new file, with fsync of file and folder."""
    began = time.perf_counter()
    with source.open("rb") as file, target.open("wb") as out:
        while piece := file.read(CHUNK_BYTES):
            out.write(piece)
        out.flush()
        os.fsync(out.fileno())
    folder = os.open(target.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)
    took = time.perf_counter() - began
    target.unlink()
    return took


async def publish(address: str, version: int, world: int, rank: int) -> tuple[float, Path]:
    """Seconds, and the joined file."""
    client = CheckpointClient(address)
    began = time.perf_counter()
    config = json.dumps({"peft_type": "LORA", "r": rank})
    ref = await client.publish(
        PublishKind.ADAPTER, version, world_size=world, base_model=BASE, adapter_config_json=config
    )
    took = time.perf_counter() - began
    await client.close()
    return took, Path(ref.url) / "adapter_model.safetensors"


async def hand_over(address: str, url: str, shards: list[Shard], shared: bool) -> float:
    """All ranks at once; seconds."""

    async def one(item: Shard) -> None:
        client = CheckpointClient(address)
        if shared:
            await asyncio.to_thread(write_shard, url, item.ref, item.chunks())
            await client.put_spooled(item.ref)
        else:
            await client.put_shard(item.ref, item.chunks())
        await client.close()

    began = time.perf_counter()
    await asyncio.gather(*(one(item) for item in shards))
    return time.perf_counter() - began


def usual(whole: dict[str, tuple[int, int]], world: int, folder: Path) -> tuple[float, float]:
    """Peak growth in bytes, and seconds, of gathering and torch.save in a process of its own."""
    command = [sys.executable, "-c", USUAL, repr(whole), str(world), str(folder / "usual.pt")]
    grown, seconds = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    (folder / "usual.pt").unlink()
    return float(grown), float(seconds)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("world", [1, 6, 64])
@pytest.mark.parametrize(("rank", "repeats"), [(32, 3), (256, 1)])
async def test_consolidation(tmp_path: Path, rank: int, repeats: int, world: int) -> None:
    whole = shapes(rank)
    seconds: dict[str, list[float]] = {
        name: [] for name in ("copy + fsync", "publish", "receive", "publish, by reference", "by reference", "usual")
    }
    grown: dict[str, list[float]] = {"manager": [], "manager, by reference": [], "usual": []}
    with manager(tmp_path) as (pid, address, url):
        small = [shard({"w.lora_A.weight": (8, 8), "w.lora_B.weight": (8, 8)}, 1, 0, 1)]
        await hand_over(address, url, small, shared=False)
        await publish(address, 1, 1, 8)  # what a first call loads is not the adapter's
        for version in range(2, 2 * repeats + 2):
            shared = version % 2 == 1
            shards = [shard(whole, version, number, world) for number in range(world)]
            base = memory_now(pid)
            seconds["by reference" if shared else "receive"].append(await hand_over(address, url, shards, shared))
            took, joined = await publish(address, version, world, rank)
            seconds["publish, by reference" if shared else "publish"].append(took)
            grown["manager, by reference" if shared else "manager"].append((memory(pid, "VmHWM") - base) / MIB)
            seconds["copy + fsync"].append(copy_seconds(joined, tmp_path / "copy"))
    for _ in range(repeats):
        peak, took = usual(whole, world, tmp_path)
        grown["usual"].append(peak / MIB)
        seconds["usual"].append(took)
    name = f"consolidation, rank {rank}, {sum(a * b for a, b in whole.values()) / 1e6:.1f} M, {world} ranks"
    show(name, "s", seconds)
    show(name, "MiB grown", grown)
