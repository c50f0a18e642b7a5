"""An adapter split over ranks, as shards with their references."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from tandem.storage import Placement, ShardMeta
from tandem.types import PublishKind, ShardRef

sys.path.insert(0, str(Path(__file__).parent))  # helper modules beside the tests
BASE = "a" * 64
RANK = 5  # LoRA rank; not divisible by 2 or 3, so that shards are uneven
CONFIG = json.dumps({"peft_type": "LORA", "r": RANK, "lora_alpha": 8, "target_modules": ["q_proj"]})


@dataclass(frozen=True)
class Sent:
    """A shard and its bytes."""

    ref: ShardRef
    data: bytes


def tensors(seed: int = 0, layers: int = 2) -> dict[str, np.ndarray]:
    """A whole adapter."""
    rng = np.random.default_rng(seed)
    whole = {}
    for layer in range(layers):
        name = f"base_model.model.layers.{layer}.q_proj"
        whole[f"{name}.lora_A.weight"] = rng.standard_normal((RANK, 8)).astype(np.float32)
        whole[f"{name}.lora_B.weight"] = rng.standard_normal((6, RANK)).astype(np.float32)
    return whole


def shard(
    whole: dict[str, np.ndarray],
    rank: int,
    world_size: int,
    version: int = 1,
    kind: PublishKind = PublishKind.ADAPTER,
    base: str = BASE,
    run: str = "",
) -> Sent:
    """Rank's rows of every tensor (ceil(rows / world_size) each, the last ranks less or none)."""
    parts, places = {}, {}
    for name, array in whole.items():
        step = -(-array.shape[0] // world_size)
        rows = array[rank * step : (rank + 1) * step]
        if rows.size:
            parts[name] = rows.copy()
            places[name] = Placement(array.shape, (rank * step,) + (0,) * (array.ndim - 1))
    data = save(parts, metadata=ShardMeta(kind, version, rank, world_size, base, places, run).to_metadata())
    return Sent(ShardRef(kind, version, rank, world_size, hashlib.sha256(data).hexdigest(), len(data)), data)


def split(whole: dict[str, np.ndarray], world_size: int, version: int = 1, **more) -> Sequence[Sent]:
    """All ranks' shards."""
    return [shard(whole, rank, world_size, version, **more) for rank in range(world_size)]


@pytest.fixture
def make_tensors() -> Callable[..., dict[str, np.ndarray]]:
    """`tensors`, for tests (conftest modules cannot be imported)."""
    return tensors


@pytest.fixture
def make_shards() -> Callable[..., Sequence[Sent]]:
    """`split`."""
    return split
