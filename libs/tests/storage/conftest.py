"""Shards made the way a learner makes them, but from numpy."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest
from safetensors.numpy import save

from tandem.storage import OpenShard, Placement, ShardMeta, read_shard
from tandem.types import PublishKind, ShardRef

BASE = "b" * 64


@dataclass(frozen=True)
class Part:
    """A block and where it belongs."""

    data: np.ndarray
    offset: tuple[int, ...]
    shape: tuple[int, ...]


def shard_bytes(parts: Mapping[str, Part], rank: int, world_size: int, version: int = 3) -> bytes:
    """A shard file."""
    places = {name: Placement(part.shape, part.offset) for name, part in parts.items()}
    meta = ShardMeta(PublishKind.ADAPTER, version, rank, world_size, BASE, places)
    arrays = {name: np.array(part.data, order="C") for name, part in parts.items()}
    return save(arrays, metadata=meta.to_metadata())


@pytest.fixture
def opened(tmp_path: Path):
    """Writes shards (one mapping per rank) to files and opens them."""
    files = []

    def open_all(ranks: Sequence[Mapping[str, Part]]) -> list[OpenShard]:
        shards = []
        for rank, parts in enumerate(ranks):
            data = shard_bytes(parts, rank, len(ranks))
            path = tmp_path / f"rank{rank}"
            path.write_bytes(data)
            files.append(path.open("rb"))
            ref = ShardRef(PublishKind.ADAPTER, 3, rank, len(ranks), hashlib.sha256(data).hexdigest(), len(data))
            shard = read_shard(files[-1].fileno(), ref, f"rank {rank}", crc32(data))
            shards.append(OpenShard(shard, files[-1].fileno(), str(path)))
        return shards

    yield open_all
    for file in files:
        file.close()


@pytest.fixture
def part() -> type[Part]:
    """The block type, for tests (conftest modules cannot be imported)."""
    return Part


@pytest.fixture
def make_shard() -> Callable[..., bytes]:
    """`shard_bytes`."""
    return shard_bytes
