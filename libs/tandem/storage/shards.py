"""What a rank's shard says of itself, and how the shards of one version join into one file.

A shard is a safetensors file whose metadata key `tandem` holds a `ShardMeta` as JSON. Each of its tensors is
a block of a global tensor, placed by an offset per dimension. Joining never looks at values: it copies runs
of bytes, in the order of the output, so the result streams to any store in one pass, in little memory.
"""

from __future__ import annotations

import heapq
import math
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from json import dumps

from pydantic import TypeAdapter

from tandem.storage.parse import parse_json
from tandem.storage.tensors import ITEM_BYTES, Header, Natural, TensorEntry, layout, read_header
from tandem.types import DataCorrupt, PublishKind, ShardRef

SHARD_KEY = "tandem"
SHARD_FORMAT = 1
CHUNK_BYTES = 2**20  # the most that one message of PutShard carries, and that joining reads at once


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a block lies in the global tensor: one offset per dimension of `global_shape`."""

    global_shape: tuple[Natural, ...]
    offset: tuple[Natural, ...]


@dataclass(frozen=True, slots=True)
class ShardMeta:
    """What a shard is part of, and where its tensors belong. `base_model` is the base model's fingerprint."""

    kind: PublishKind
    version: Natural
    rank: Natural
    world_size: Natural
    base_model: str
    tensors: Mapping[str, Placement]
    format: int = SHARD_FORMAT

    def to_metadata(self) -> dict[str, str]:
        """For safetensors' `metadata=`."""
        return {SHARD_KEY: dumps(asdict(self))}


@dataclass(frozen=True, slots=True)
class OpenShard:
    """A shard file that is open for reading at `fd`; `what` names it in errors."""

    fd: int
    what: str
    meta: ShardMeta
    header: Header


@dataclass(frozen=True, slots=True)
class Block:
    """A shard's part of one tensor."""

    shard: OpenShard
    entry: TensorEntry
    offset: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Joined:
    """How a tensor comes about. `blocks` cover `shape` exactly once."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class JoinPlan:
    """The output file: its head, then the tensors in the order of their data."""

    head: bytes
    tensors: tuple[Joined, ...]


@dataclass(frozen=True, slots=True)
class Run:
    """`length` contiguous bytes: at `source` of the block's data, at `target` of the global tensor's."""

    block: Block
    target: int
    source: int
    length: int


_META = TypeAdapter(ShardMeta)


def open_shard(fd: int, ref: ShardRef, what: str) -> OpenShard:
    """Read what the shard at `fd` says of itself and hold it against `ref`. Its hash is the caller's affair.

    Raises:
        DataCorrupt: no shard, or one of another kind, version, rank or world size.
    """
    header = read_header(fd, what)
    if SHARD_KEY not in header.metadata:
        raise DataCorrupt(f"{what}: its metadata has no '{SHARD_KEY}'; write shards with ShardMeta.to_metadata()")
    meta = parse_json(_META, header.metadata[SHARD_KEY].encode(), f"{what}: metadata '{SHARD_KEY}'")
    if meta.format != SHARD_FORMAT:
        raise DataCorrupt(f"{what}: shard format {meta.format} is not known here, only {SHARD_FORMAT}")
    for field in ("kind", "version", "rank", "world_size"):
        said, asked = getattr(meta, field), getattr(ref, field)
        if said != asked:
            raise DataCorrupt(f"{what}: the file says {field} {said}, but it was sent as {field} {asked}")
    for name, entry in header.tensors.items():
        _check_placement(name, entry, meta.tensors.get(name), what)
    return OpenShard(fd, what, meta, header)


def plan_join(shards: Sequence[OpenShard], what: str) -> JoinPlan:
    """Lay out the file that the shards make; `what` names it.

    Raises:
        DataCorrupt: an element is missing or there twice, or shards disagree on a tensor's dtype or shape.
    """
    found: dict[str, list[tuple[Block, tuple[int, ...]]]] = defaultdict(list)
    for shard in shards:
        for name, entry in shard.header.tensors.items():
            place = shard.meta.tensors[name]
            found[name].append((Block(shard, entry, place.offset), place.global_shape))
    if not found:
        raise DataCorrupt(f"{what}: no shard holds a tensor")
    joined = {name: _join(name, parts, what) for name, parts in found.items()}
    head, order = layout({name: (item.dtype, item.shape) for name, item in joined.items()}, {"format": "pt"})
    return JoinPlan(head, tuple(joined[name] for name in order))


def joined_pieces(plan: JoinPlan) -> Iterator[bytes]:
    """The output's bytes in order, in pieces of about `CHUNK_BYTES`, read from the shards as needed."""
    piece = bytearray(plan.head)
    for tensor in plan.tensors:
        for run in _runs(tensor):
            shard = run.block.shard
            start = shard.header.data_start + run.block.entry.data_offsets[0] + run.source
            for position in range(0, run.length, CHUNK_BYTES):
                piece += _read(shard, start + position, min(CHUNK_BYTES, run.length - position))
                if len(piece) >= CHUNK_BYTES:
                    yield bytes(piece)
                    piece.clear()
    if piece:
        yield bytes(piece)


def _check_placement(name: str, entry: TensorEntry, place: Placement | None, what: str) -> None:
    if place is None:
        raise DataCorrupt(f"{what}: tensor {name} has no place in metadata '{SHARD_KEY}'")
    bounds = (place.offset, entry.shape, place.global_shape)
    if len({len(bound) for bound in bounds}) != 1 or any(o + s > g for o, s, g in zip(*bounds, strict=True)):
        raise DataCorrupt(
            f"{what}: tensor {name} of shape {list(entry.shape)} at {list(place.offset)} "
            f"does not fit in {list(place.global_shape)}"
        )


def _join(name: str, parts: Sequence[tuple[Block, tuple[int, ...]]], what: str) -> Joined:
    first, shape = parts[0]
    for block, other in parts[1:]:
        if block.entry.dtype != first.entry.dtype:
            raise DataCorrupt(
                f"{what}: tensor {name} is {first.entry.dtype} in {first.shard.what} "
                f"but {block.entry.dtype} in {block.shard.what}"
            )
        if other != shape:
            raise DataCorrupt(
                f"{what}: tensor {name} is {list(shape)} in {first.shard.what} but {list(other)} in {block.shard.what}"
            )
    tensor = Joined(name, first.entry.dtype, shape, tuple(block for block, _ in parts if block.entry.size))
    _check_cover(tensor, what)
    return tensor


def _check_cover(tensor: Joined, what: str) -> None:
    item = ITEM_BYTES[tensor.dtype]
    position = 0
    for run in _runs(tensor):
        if run.target < position:
            twice = f"element {run.target // item} is there twice, again in {run.block.shard.what}"
            raise DataCorrupt(f"{what}: tensor {tensor.name}: {twice}")
        if run.target > position:
            break
        position += run.length
    items = math.prod(tensor.shape)
    if position != items * item:
        raise DataCorrupt(f"{what}: tensor {tensor.name}: element {position // item} of {items} is in no shard")


def _runs(tensor: Joined) -> Iterator[Run]:
    """All runs of a tensor by their place in it; lazily, for a split by columns has one per row and block."""
    return heapq.merge(*(_block_runs(block, tensor.shape) for block in tensor.blocks), key=lambda run: run.target)


def _block_runs(block: Block, shape: tuple[int, ...]) -> Iterator[Run]:
    """A block's contiguous runs: the last dimensions, while spanned whole, and the one before make one."""
    part, item = block.entry.shape, ITEM_BYTES[block.entry.dtype]
    outer = len(shape)  # dims [0, outer) are walked, dims [outer, n) are inside a run
    while outer and part[outer:] == shape[outer:]:
        outer -= 1
    length = math.prod(part[outer:])
    strides = [math.prod(shape[dim + 1 :]) for dim in range(len(shape))]
    corner = sum(offset * stride for offset, stride in zip(block.offset, strides, strict=True))
    for count, index in enumerate(product(*(range(size) for size in part[:outer]))):
        target = corner + sum(i * stride for i, stride in zip(index, strides, strict=False))
        yield Run(block, target * item, count * length * item, length * item)


def _read(shard: OpenShard, start: int, length: int) -> bytes:
    data = os.pread(shard.fd, length, start)
    if len(data) != length:
        raise DataCorrupt(f"{shard.what}: truncated: {length} bytes expected at {start}, {len(data)} there")
    return data
