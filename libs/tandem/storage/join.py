"""How the shards of one version join into one file.

Joining never looks at values: it copies runs of bytes, in the order of the output, so the result streams to any
store in one pass. Memory is a few windows of the output, whatever its size and the number of shards: in each
window every shard is read once, and the bytes are laid out as the output wants them. Their CRC-32 is held against the
one taken when the shard came and had the sha256 that its rank announced: what it guards against is the spool's disk.
"""

from __future__ import annotations

import heapq
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import NamedTuple
from zlib import crc32

from tandem.runtime import WAITS
from tandem.storage.shards import Block, OpenShard, TensorSpec
from tandem.storage.tensors import ITEM_BYTES, layout
from tandem.types import DataCorrupt

WINDOW_BYTES = 2 * 2**20
WINDOW_RUNS = 2**14  # a run takes some hundred bytes of memory, however few of the output it stands for


class Run(NamedTuple):
    """`length` contiguous bytes: at `target` of the tensor's, at `source` of the file of shard number `shard`."""

    target: int
    length: int
    shard: int
    source: int


@dataclass(frozen=True, slots=True)
class Joined:
    """How a tensor comes about: the runs of its blocks, by their place in it, cover `shape` exactly once."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    runs: Iterable[Run]


@dataclass(frozen=True, slots=True)
class JoinPlan:
    """The output file: its head, then the tensors in the order of their data."""

    head: bytes
    tensors: tuple[Joined, ...]
    shards: tuple[OpenShard, ...]


def plan_join(shards: Sequence[OpenShard], what: str) -> JoinPlan:
    """Lay out the file that the shards make; `what` names it.

    Raises:
        DataCorrupt: an element is missing or there twice, or shards disagree on a tensor's dtype or shape.
    """
    found: dict[str, list[tuple[int, Block]]] = defaultdict(list)
    for number, item in enumerate(shards):
        for block in item.shard.blocks():
            found[block.tensor.name].append((number, block))
    if not found:
        raise DataCorrupt(f"{what}: no shard holds a tensor")
    joined = {name: _join(parts, shards, what) for name, parts in found.items()}
    head, order = layout({name: (item.dtype, item.shape) for name, item in joined.items()}, {"format": "pt"})
    return JoinPlan(head, tuple(joined[name] for name in order), tuple(shards))


def joined_pieces(plan: JoinPlan) -> Iterator[bytes]:
    """The output's bytes in order, in pieces of at most `WINDOW_BYTES` (and its head), read as they are asked for.

    Raises:
        DataCorrupt: a shard is not, or no longer, what its rank has announced. This shows at the end: what has
            been given out until then must not become visible.
    """
    checked = {number: item for number, item in enumerate(plan.shards) if item.check}
    crcs = {number: crc32(_read(item, 0, item.shard.data_start)) for number, item in checked.items()}
    yield plan.head
    for window in _windows(plan):
        reads = _read_window(window, plan)
        WAITS.progressed()
        for number, data in reads:
            if number in crcs:
                crcs[number] = crc32(data, crcs[number])
        yield _laid_out(window, reads)
    for number, item in checked.items():
        if crcs[number] != item.shard.crc:
            raise DataCorrupt(f"{item.shard.what}: changed in {item.path} since it came; send it again")


def _join(parts: Sequence[tuple[int, Block]], shards: Sequence[OpenShard], what: str) -> Joined:
    number, block = parts[0]
    first, spec = shards[number], block.tensor
    for number, block in parts:
        other = block.tensor
        if other is spec or other == spec:
            continue
        here = f"in {first.shard.what} but"
        if other.dtype != spec.dtype:
            there = f"{other.dtype} in {shards[number].shard.what}"
            raise DataCorrupt(f"{what}: tensor {spec.name} is {spec.dtype} {here} {there}")
        there = f"{list(other.shape)} in {shards[number].shard.what}"
        raise DataCorrupt(f"{what}: tensor {spec.name} is {list(spec.shape)} {here} {there}")
    runs = _by_rows(spec, parts) or _Runs(parts)
    _check_cover(spec, runs, shards, what)
    return Joined(spec.name, spec.dtype, spec.shape, runs)


def _check_cover(tensor: TensorSpec, runs: Iterable[Run], shards: Sequence[OpenShard], what: str) -> None:
    item = ITEM_BYTES[tensor.dtype]
    position = 0
    for target, length, number, _ in runs:
        if target < position:
            twice = f"element {target // item} is there twice, again in {shards[number].shard.what}"
            raise DataCorrupt(f"{what}: tensor {tensor.name}: {twice}")
        if target > position:
            break
        position += length
    items = prod(tensor.shape)
    if position != items * item:
        raise DataCorrupt(f"{what}: tensor {tensor.name}: element {position // item} of {items} is in no shard")


def _by_rows(tensor: TensorSpec, parts: Sequence[tuple[int, Block]]) -> list[Run]:
    """The runs of a tensor that is split by rows, one per block; none where it is split otherwise."""
    inner = tensor.shape[1:]
    row = prod(inner) * ITEM_BYTES[tensor.dtype]
    runs = []
    for number, block in parts:
        if not block.shape or block.shape[1:] != inner:
            return []
        runs.append(Run(block.offset[0] * row, block.shape[0] * row, number, block.start))
    return sorted(run for run in runs if run.length)


@dataclass(frozen=True, slots=True)
class _Runs:
    """The runs of any split, made each time they are asked for: one by columns has one per row and block."""

    parts: Sequence[tuple[int, Block]]

    def __iter__(self) -> Iterator[Run]:
        return heapq.merge(*(_block_runs(number, block) for number, block in self.parts if prod(block.shape)))


def _block_runs(number: int, block: Block) -> Iterator[Run]:
    """A block's contiguous runs: the last dimensions, while spanned whole, and the one before make one."""
    shape, part, item = block.tensor.shape, block.shape, ITEM_BYTES[block.tensor.dtype]
    outer = len(shape)  # dims [0, outer) are walked, dims [outer, n) are inside a run
    while outer and part[outer:] == shape[outer:]:
        outer -= 1
    length = prod(part[outer:])
    strides = [prod(shape[dim + 1 :]) for dim in range(len(shape))]
    corner = sum(offset * stride for offset, stride in zip(block.offset, strides, strict=True))
    for count, index in enumerate(product(*(range(size) for size in part[:outer]))):
        target = corner + sum(i * stride for i, stride in zip(index, strides, strict=False))
        yield Run(target * item, length * item, number, block.start + count * length * item)


def _windows(plan: JoinPlan) -> Iterator[list[tuple[int, int, int]]]:
    """The output's data as lists of (shard, source, length), all but the last of `WINDOW_BYTES`, or of fewer bytes
    in `WINDOW_RUNS` runs."""
    window: list[tuple[int, int, int]] = []
    room = WINDOW_BYTES
    for tensor in plan.tensors:
        for _, length, number, source in tensor.runs:
            while length > room:
                window.append((number, source, room))
                yield window
                source, length = source + room, length - room
                window, room = [], WINDOW_BYTES
            window.append((number, source, length))
            room -= length
            if len(window) == WINDOW_RUNS:
                yield window
                window, room = [], WINDOW_BYTES
    if window:
        yield window


def _read_window(window: Sequence[tuple[int, int, int]], plan: JoinPlan) -> list[tuple[int, bytes]]:
    """What the window needs of each shard, which is contiguous there: shards lie in the order of the output."""
    extents: dict[int, tuple[int, int]] = {}
    for number, source, length in window:
        start, size = extents.get(number, (source, 0))
        extents[number] = (start, size + length)
    return [(number, _read(plan.shards[number], start, size)) for number, (start, size) in extents.items()]


def _laid_out(window: Sequence[tuple[int, int, int]], reads: Sequence[tuple[int, bytes]]) -> bytes:
    if len(reads) == 1:
        return reads[0][1]
    views = {number: memoryview(data) for number, data in reads}
    taken = dict.fromkeys(views, 0)
    parts: list[memoryview] = []
    for number, _, length in window:
        at = taken[number]
        taken[number] = at + length
        parts.append(views[number][at : at + length])
    return b"".join(parts)


def _read(item: OpenShard, start: int, length: int) -> bytes:
    data = os.pread(item.fd, length, start)
    if len(data) != length:
        raise DataCorrupt(f"{item.shard.what}: truncated: {length} bytes expected at {start}, {len(data)} there")
    return data
