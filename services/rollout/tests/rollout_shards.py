"""A published adapter split over ranks, as the learner's ranks would send it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save

from tandem.rpc.clients import RolloutClient
from tandem.storage import CHUNK_BYTES, Placement, ShardMeta
from tandem.types import AdapterRef, PublishKind, Pushed, ShardRef


@dataclass(frozen=True)
class Sent:
    """A shard and its bytes."""

    ref: ShardRef
    data: bytes

    def chunks(self) -> Iterator[bytes]:
        return (self.data[at : at + CHUNK_BYTES] for at in range(0, len(self.data), CHUNK_BYTES))


def tensors(ref: AdapterRef) -> dict[str, np.ndarray]:
    return load_file(Path(ref.url) / "adapter_model.safetensors")


def pushed(ref: AdapterRef, world_size: int) -> Pushed:
    return Pushed(world_size, (Path(ref.url) / "adapter_config.json").read_text())


def unknown(ref: AdapterRef) -> AdapterRef:
    """What is known of an adapter before it is published."""
    return AdapterRef(ref.version, "", "", ref.name, ref.base_model, 0)


def shards(ref: AdapterRef, world_size: int, whole: dict[str, np.ndarray] | None = None, **meta) -> Sequence[Sent]:
    """All ranks' shards: rows in turn, ceil(rows / world_size) each, the last ranks less or none."""
    whole = tensors(ref) if whole is None else whole
    return [_shard(whole, ref, rank, world_size, meta) for rank in range(world_size)]


def _shard(whole: dict[str, np.ndarray], ref: AdapterRef, rank: int, world_size: int, more: dict) -> Sent:
    parts, places = {}, {}
    for name, array in whole.items():
        step = -(-array.shape[0] // world_size)
        rows = array[rank * step : (rank + 1) * step]
        if rows.size:
            parts[name] = rows.copy()
            places[name] = Placement(array.shape, (rank * step,) + (0,) * (array.ndim - 1))
    meta = replace(ShardMeta(PublishKind.ADAPTER, ref.version, rank, world_size, ref.base_model, places), **more)
    data = save(parts, metadata=meta.to_metadata())
    return sent(data, ref.version, rank, world_size)


def sent(data: bytes, version: int, rank: int, world_size: int) -> Sent:
    digest = hashlib.sha256(data).hexdigest()
    return Sent(ShardRef(PublishKind.ADAPTER, version, rank, world_size, digest, len(data)), data)


async def push(client: RolloutClient, ref: AdapterRef, world_size: int) -> Pushed:
    """Send all shards; what to load them with."""
    for shard in shards(ref, world_size):
        await client.put_shard(shard.ref, shard.chunks())
    return pushed(ref, world_size)


def config_with(ref: AdapterRef, **changes: object) -> str:
    return json.dumps(json.loads((Path(ref.url) / "adapter_config.json").read_text()) | changes)
