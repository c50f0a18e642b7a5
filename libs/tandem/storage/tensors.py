"""The safetensors file format as far as joining needs it: the header. The bytes of tensors are only copied.

A file is 8 bytes of header length (little endian), a header {name: {dtype, shape, data_offsets}} in JSON,
and the data.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from tandem.storage.parse import parse_json
from tandem.types import DataCorrupt

# In the order in which safetensors knows them: a file holds the last ones first.
ITEM_BYTES = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3"), 1),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 2),
    **dict.fromkeys(("I32", "U32", "F32"), 4),
    **dict.fromkeys(("F64", "I64", "U64"), 8),
}
_PLACE = {dtype: -number for number, dtype in enumerate(ITEM_BYTES)}
# A shard of an 8B model's adapter has a header of about 200 kB; a length far above is a file of another kind.
MAX_HEADER_BYTES = 16 * 2**20
METADATA_KEY = "__metadata__"

Natural = Annotated[int, Field(ge=0, strict=True)]


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor of a file; `data_offsets` count bytes (start, stop) from the start of the data."""

    dtype: Literal[
        "BOOL",
        "U8",
        "I8",
        "F8_E4M3",
        "F8_E5M2",
        "U16",
        "I16",
        "F16",
        "BF16",
        "U32",
        "I32",
        "F32",
        "U64",
        "I64",
        "F64",
    ]
    shape: tuple[Natural, ...]
    data_offsets: tuple[Natural, Natural]

    @property
    def size(self) -> int:
        """Bytes."""
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class Header:
    """What a safetensors file holds. Byte `data_start` of the file is the first of the data."""

    tensors: Mapping[str, TensorEntry]
    metadata: Mapping[str, str]
    data_start: int


_HEADER = TypeAdapter(dict[str, TensorEntry | dict[str, str]])


def read_header(fd: int, what: str) -> Header:
    """The header of the open file `fd`, checked against its size.

    Raises:
        DataCorrupt: the file is truncated or no safetensors file; `what` names it.
    """
    size = os.fstat(fd).st_size
    length = int.from_bytes(os.pread(fd, 8, 0), "little")
    if size < 8 or length > min(MAX_HEADER_BYTES, size - 8):
        raise DataCorrupt(f"{what}: no safetensors file, or truncated ({size} bytes)")
    parts = parse_json(_HEADER, os.pread(fd, length, 8), f"{what}: safetensors header")
    metadata = parts.pop(METADATA_KEY, {})
    tensors = {name: entry for name, entry in parts.items() if isinstance(entry, TensorEntry)}
    if not isinstance(metadata, dict) or len(tensors) != len(parts):
        raise DataCorrupt(f"{what}: safetensors header: an entry is not a tensor")
    _check_extent(tensors, size - 8 - length, what)
    return Header(tensors, metadata, 8 + length)


def place_in_file(name: str, dtype: str) -> tuple[int, str]:
    """Sorts tensors as safetensors lays them out: by dtype, wide ones first, then by name."""
    return _PLACE[dtype], name


def layout(
    tensors: Mapping[str, tuple[str, tuple[int, ...]]], metadata: Mapping[str, str]
) -> tuple[bytes, tuple[str, ...]]:
    """Lay a file out before a byte of its data is there: its head, and the names in the order of their data.

    `tensors` maps name to (dtype, shape). Wide items come first and the head is padded to 8: all is aligned.
    """
    order = tuple(sorted(tensors, key=lambda name: place_in_file(name, tensors[name][0])))
    header: dict[str, object] = {METADATA_KEY: dict(metadata)} if metadata else {}
    position = 0
    for name in order:
        dtype, shape = tensors[name]
        stop = position + math.prod(shape) * ITEM_BYTES[dtype]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [position, stop]}
        position = stop
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, order


def _check_extent(tensors: Mapping[str, TensorEntry], data_bytes: int, what: str) -> None:
    position = 0
    for name, entry in sorted(tensors.items(), key=lambda item: item[1].data_offsets):
        start, stop = entry.data_offsets
        if start != position or stop - start != entry.size:
            raise DataCorrupt(
                f"{what}: tensor {name} at bytes {start} to {stop} does not fit its neighbours or its shape"
            )
        position = stop
    if position != data_bytes:
        raise DataCorrupt(
            f"{what}: truncated or padded: {data_bytes} bytes of data where its header describes {position}"
        )
