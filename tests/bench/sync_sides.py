"""The processes that the bench of transports moves adapters between: `python -m tests.bench.sync_sides replica|rank`.

A replica is the real service (servicer, inbox, join, checks, copy from the store) around an engine that reads the
adapter's file into memory and serves nothing: sixteen of vLLM's do not fit one machine. A rank runs the learner's own
sending of a shard that holds an adapter of Qwen3-VL-8B's shape.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from tandem.config import Config
from tandem.model.chat import ChatFormat
from tandem.rpc.server import serve
from tandem.storage import Placement, ShardMeta
from tandem.storage.tensors import layout
from tandem.types import PublishKind
from tandem_learner.host_copy import HostMemory
from tandem_learner.orders import Destinations
from tandem_learner.sending import send
from tandem_rollout.base_model import BaseModel
from tandem_rollout.main import build_replica
from tandem_rollout.servicer import SERVICE, RolloutServicer
from tests.file_engine import FileEngine

ROOT = Path(__file__).parents[2]
BASE = "b" * 64
RANK, RANKS, LAYERS = 32, 2, 36
HIDDEN, INTERMEDIATE, KEYS = 4096, 12288, 8 * 128
SHAPES = {  # (out, in) of the language model's linears
    "self_attn.q_proj": (HIDDEN, HIDDEN),
    "self_attn.k_proj": (KEYS, HIDDEN),
    "self_attn.v_proj": (KEYS, HIDDEN),
    "self_attn.o_proj": (HIDDEN, HIDDEN),
    "mlp.gate_proj": (INTERMEDIATE, HIDDEN),
    "mlp.up_proj": (INTERMEDIATE, HIDDEN),
    "mlp.down_proj": (HIDDEN, INTERMEDIATE),
}
ADAPTER_CONFIG = json.dumps({"peft_type": "LORA", "r": RANK, "lora_alpha": 2 * RANK})
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def linears() -> Iterator[tuple[str, tuple[int, int]]]:
    """Name and (out, in) of every layer that carries an adapter."""
    for layer in range(LAYERS):
        for name, shape in SHAPES.items():
            yield f"model.language_model.layers.{layer}.{name}", shape


def write_base(folder: Path) -> None:
    """A base model's weights as far as a replica looks at them: the header, before a hole of 14 GB."""
    folder.mkdir()
    head, _ = layout({f"{name}.weight": ("BF16", shape) for name, shape in linears()}, {})
    path = folder / "model.safetensors"
    path.write_bytes(head)
    with open(path, "r+b") as file:
        file.truncate(len(head) + sum(2 * rows * columns for _, (rows, columns) in linears()))


async def replica(base_folder: str, folder: str) -> None:
    """Serve until stdin ends; says its address."""
    base = BaseModel(Path(base_folder), BASE, ChatFormat.load(ROOT / "models/tiny-qwen3vl"), 151936, 27)
    config = Config.model_validate(
        {"model": {"path": base_folder}, "sync": {"folder": folder}, "security": {"adapters_from": ["/"]}}
    )
    engine: Any = FileEngine()
    built = build_replica(config, engine, base)
    server = await serve(RolloutServicer(built).register, [SERVICE])
    say({"address": server.address})
    await asyncio.to_thread(sys.stdin.read)
    await server.stop(0)
    await built.close()


async def rank(number: str) -> None:
    """For each line on stdin, `{"version", "dtype", "to"}`, send this rank's shard and say what was sent."""
    memory, tensors = HostMemory(torch.device("cpu")), {name: _shard(int(number), name) for name in DTYPES}
    say({"ready": True})
    while line := await asyncio.to_thread(sys.stdin.readline):
        order = json.loads(line)
        parts, places = tensors[order["dtype"]]
        for part in parts.values():
            part[0, 0] = order["version"]  # no version is the one before
        meta = ShardMeta(PublishKind.ADAPTER, order["version"], int(number), RANKS, BASE, places)
        to = Destinations(order["to"][0], tuple(order["to"][1:]))
        say(asdict(await send(memory.copy(parts, meta), to, timeout_s=600.0)))


def _shard(number: int, dtype: str) -> tuple[dict[str, torch.Tensor], dict[str, Placement]]:
    generator = torch.Generator().manual_seed(number)
    parts, places = {}, {}
    for name, (rows, columns) in linears():
        for part, shape in (("A", (RANK, columns)), ("B", (rows, RANK))):
            mine = shape[0] // RANKS
            key = f"base_model.model.{name}.lora_{part}.weight"
            parts[key] = (torch.rand((mine, shape[1]), generator=generator) / 100).to(DTYPES[dtype])
            places[key] = Placement(shape, (number * mine, 0))
    return parts, places


def say(answer: object) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    torch.set_num_threads(1)
    asyncio.run({"replica": replica, "rank": rank}[sys.argv[1]](*sys.argv[2:]))
