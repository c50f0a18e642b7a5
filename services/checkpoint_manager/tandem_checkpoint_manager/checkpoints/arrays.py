"""A safetensors file as float32 numpy arrays, read a block of rows at a time: memory stays small whatever its size."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandem.storage import explained
from tandem.storage.tensors import ITEM_BYTES, Header, TensorEntry, read_header
from tandem.types import DataCorrupt, UserError

BLOCK_BYTES = 8 * 2**20  # of float32 at a time
FLOATS = ("F32", "F16", "BF16")


@dataclass(frozen=True, slots=True)
class TensorFile:
    """An open file; tensors by name in `header`."""

    path: Path
    fd: int
    header: Header

    def read(self, start: int, length: int) -> bytes:
        """Bytes of the data, from its start. Raises DataCorrupt where the file is shorter."""
        data = os.pread(self.fd, length, self.header.data_start + start)
        if len(data) != length:
            raise DataCorrupt(f"{self.path}: truncated")
        return data

    def rows(self, name: str, start: int = 0, stop: int | None = None) -> NDArray[np.float32]:
        """Rows [start, stop) of a tensor as float32 [rows, elements of a row]; a scalar is one row."""
        entry = self.header.tensors[name]
        count, width = row_shape(entry)
        stop = count if stop is None else stop
        item = ITEM_BYTES[entry.dtype]
        data = self.read(entry.data_offsets[0] + start * width * item, (stop - start) * width * item)
        return to_float32(data, entry.dtype, f"{self.path}: {name}").reshape(stop - start, width)


@contextmanager
def open_tensor_file(path: Path) -> Iterator[TensorFile]:
    """Raises DataCorrupt where it is no whole safetensors file, NotFound where it is not there."""
    with explained(f"reading {path}", setting="the folder"):
        file = open(path, "rb")  # noqa: SIM115 - closed below; what the body raises is not about this file
    with file:
        yield TensorFile(path, file.fileno(), read_header(file.fileno(), str(path)))


def row_shape(entry: TensorEntry) -> tuple[int, int]:
    """A tensor as a table: rows of the first dimension, and the elements of one."""
    return (entry.shape[0], math.prod(entry.shape[1:])) if entry.shape else (1, 1)


def row_blocks(entry: TensorEntry) -> Iterator[tuple[int, int]]:
    """[start, stop) of blocks of rows, each of about `BLOCK_BYTES` in float32."""
    count, width = row_shape(entry)
    step = max(1, BLOCK_BYTES // (4 * max(1, width)))
    return ((start, min(start + step, count)) for start in range(0, count, step))


def to_float32(data: bytes, dtype: str, what: str) -> NDArray[np.float32]:
    """A flat array. Raises UserError for a dtype that is no float of 16 or 32 bits."""
    if dtype == "F32":
        return np.frombuffer(data, "<f4")
    if dtype == "F16":
        return np.frombuffer(data, "<f2").astype(np.float32)
    if dtype == "BF16":  # the upper half of a float32
        return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
    raise UserError(f"{what}: is {dtype}; only {', '.join(FLOATS)} can be computed with")


def from_float32(values: NDArray[Any], dtype: str) -> bytes:
    """Bytes of one of `FLOATS`; bf16 rounds to the nearest, ties to even."""
    if dtype == "F32":
        return values.astype("<f4").tobytes()
    if dtype == "F16":
        return values.astype("<f2").tobytes()
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype("<u2")
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded).astype("<u2").tobytes()
