"""What a rank's shard says of itself.

A shard is a safetensors file whose metadata key `tandem` holds a `ShardMeta` as JSON. Each of its tensors is
a block of a global tensor, placed by an offset per dimension. Its tensors lie in the order in which safetensors
writes them, which is that of the file they are joined into: joining reads each shard once, from front to back.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from json import dumps
from math import prod
from typing import NamedTuple

from pydantic import TypeAdapter

from tandem.storage.parse import parse_json
from tandem.storage.tensors import ITEM_BYTES, Header, Natural, TensorEntry, place_in_file, read_header
from tandem.types import DataCorrupt, PublishKind, ShardRef

SHARD_KEY = "tandem"
SHARD_FORMAT = 1
CHUNK_BYTES = 2**20  # the most that one message of PutShard carries, and that files are read by


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a block lies in the global tensor: one offset per dimension of `global_shape`."""

    global_shape: tuple[Natural, ...]
    offset: tuple[Natural, ...]


@dataclass(frozen=True, slots=True)
class ShardMeta:
    """What a shard is part of, and where its tensors belong. `base_model` is the base model's fingerprint, `run` the
    run's name."""

    kind: PublishKind
    version: Natural
    rank: Natural
    world_size: Natural
    base_model: str
    tensors: Mapping[str, Placement]
    run: str = ""
    format: int = SHARD_FORMAT

    def to_metadata(self) -> dict[str, str]:
        """For safetensors' `metadata=`."""
        return {SHARD_KEY: dumps(asdict(self))}


class TensorSpec(NamedTuple):
    """A global tensor."""

    name: str
    dtype: str
    shape: tuple[int, ...]


class Block(NamedTuple):
    """A shard's part of a tensor: `shape` items at `offset`, contiguous from byte `start` of the file."""

    tensor: TensorSpec
    offset: tuple[int, ...]
    shape: tuple[int, ...]
    start: int


@dataclass(frozen=True, slots=True)
class Shard:
    """A shard as it describes itself, kept small: a manager holds many. `what` names it in errors, `crc` is the CRC-32
    of its file, taken along when its sha256 was found right.

    `places` holds for each tensor `width` offsets, then `width` sizes; a tensor of fewer dimensions leaves the
    last ones of each unused.
    """

    ref: ShardRef
    what: str
    crc: int
    base_model: str
    run: str
    data_start: int
    tensors: tuple[TensorSpec, ...]
    width: int
    places: array[int]

    def blocks(self) -> Iterator[Block]:
        """Its blocks in the order of their bytes."""
        start, width = self.data_start, self.width
        numbers = iter(self.places)
        rows = zip(*[numbers] * (2 * width), strict=True) if width else ((),) * len(self.tensors)
        for tensor, row in zip(self.tensors, rows, strict=True):
            dims = len(tensor.shape)
            shape = row[width : width + dims]
            yield Block(tensor, row[:dims], shape, start)
            start += prod(shape) * ITEM_BYTES[tensor.dtype]


@dataclass(frozen=True, slots=True)
class OpenShard:
    """A shard whose file, at `path`, is open for reading at `fd`. `check`: joining hashes what it reads."""

    shard: Shard
    fd: int
    path: str
    check: bool = True


_META = TypeAdapter(ShardMeta)


def read_shard(fd: int, ref: ShardRef, what: str, crc: int) -> Shard:
    """Read what the shard at `fd` says of itself and hold it against `ref`. Its sha256, and `crc`, are the caller's.

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
    return _compact(header, meta, ref, what, crc)


def _compact(header: Header, meta: ShardMeta, ref: ShardRef, what: str, crc: int) -> Shard:
    order = sorted(header.tensors, key=lambda name: place_in_file(name, header.tensors[name].dtype))
    specs = _shared(
        tuple(TensorSpec(name, header.tensors[name].dtype, meta.tensors[name].global_shape) for name in order)
    )
    width = max((len(spec.shape) for spec in specs), default=0)
    places = array("q")
    position = 0
    for spec in specs:
        entry, rest = header.tensors[spec.name], [0] * (width - len(spec.shape))
        if entry.size and entry.data_offsets[0] != position:
            raise DataCorrupt(
                f"{what}: tensor {spec.name} is not where safetensors puts it: wide types first, then by name"
            )
        position += entry.size
        places.extend([*meta.tensors[spec.name].offset, *rest, *entry.shape, *rest])
    return Shard(ref, what, crc, meta.base_model, meta.run, header.data_start, specs, width, places)


@lru_cache(maxsize=8)
def _shared(specs: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
    """One object for all ranks' equal lists of tensors."""
    return specs


def _check_placement(name: str, entry: TensorEntry, place: Placement | None, what: str) -> None:
    if place is None:
        raise DataCorrupt(f"{what}: tensor {name} has no place in metadata '{SHARD_KEY}'")
    bounds = (place.offset, entry.shape, place.global_shape)
    if len({len(bound) for bound in bounds}) != 1 or any(o + s > g for o, s, g in zip(*bounds, strict=True)):
        raise DataCorrupt(
            f"{what}: tensor {name} of shape {list(entry.shape)} at {list(place.offset)} "
            f"does not fit in {list(place.global_shape)}"
        )
    if max(place.global_shape, default=0) >= 2**63:
        raise DataCorrupt(f"{what}: tensor {name} of shape {list(place.global_shape)} cannot be")
