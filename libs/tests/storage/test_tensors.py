"""The safetensors header: what the library writes is read, what is damaged is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors import TensorSpec, serialize
from safetensors.numpy import save

from tandem.storage.tensors import ITEM_BYTES, layout, read_header
from tandem.types import DataCorrupt

NAMES = {  # of dtypes where safetensors' own differs from the one in the file
    "BF16": "bfloat16",
    "BOOL": "bool",
    "F16": "float16",
    "F32": "float32",
    "F64": "float64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
} | {f"{kind}{bits}": f"{'u' if kind == 'U' else ''}int{bits}" for kind in "IU" for bits in (8, 16, 32, 64)}


def header_of(path: Path, data: bytes):
    path.write_bytes(data)
    with path.open("rb") as file:
        return read_header(file.fileno(), "file x")


def test_reads_what_safetensors_writes(tmp_path: Path) -> None:
    data = save({"a": np.zeros((2, 3), np.float32), "n": np.array(1, np.int64)}, metadata={"k": "v"})
    header = header_of(tmp_path / "x", data)
    assert header.metadata == {"k": "v"}
    assert {name: (t.dtype, t.shape) for name, t in header.tensors.items()} == {
        "a": ("F32", (2, 3)),
        "n": ("I64", ()),
    }
    assert header.data_start + 2 * 3 * 4 + 8 == len(data)


def test_layout_is_aligned_wide_items_first() -> None:
    head, order = layout({"b": ("U8", (3,)), "a": ("F32", (2,)), "c": ("I64", ())}, {"format": "pt"})
    assert order == ("c", "a", "b")
    assert len(head) % 8 == 0
    parsed = json.loads(head[8:])
    assert [parsed[name]["data_offsets"] for name in order] == [[0, 8], [8, 16], [16, 19]]


def test_the_order_is_that_in_which_safetensors_writes() -> None:
    names = {dtype: NAMES.get(dtype, dtype.lower()) for dtype in ITEM_BYTES}
    room = np.zeros(16, np.uint8)
    tensors = {
        f"{name}/{dtype}": TensorSpec(dtype=names[dtype], shape=[2], data_ptr=room.ctypes.data, data_len=2 * size)
        for name in ("a", "é", "B")
        for dtype, size in ITEM_BYTES.items()
    }
    data = serialize(tensors)
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    written = sorted(header, key=lambda name: header[name]["data_offsets"])
    assert tuple(written) == layout({name: (name[2:], (2,)) for name in header}, {})[1]


def damage(data: bytes, key: str, value: object) -> bytes:
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    header["a"][key] = value
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data[8 + length :]


GOOD = save({"a": np.zeros((2, 3), np.float32)})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "no safetensors file, or truncated"),
        (GOOD[:40], "no safetensors file, or truncated"),
        (GOOD[:-1], "truncated or padded: 23 bytes of data where its header describes 24"),
        (GOOD + b"x", "truncated or padded: 25 bytes"),
        (b"\xff" * 64, "no safetensors file"),
        ((5).to_bytes(8, "little") + b"hello", "safetensors header"),
        (damage(GOOD, "shape", [2, 4]), "tensor a at bytes 0 to 24 does not fit"),
        (damage(GOOD, "data_offsets", [4, 28]), "tensor a at bytes 4 to 28 does not fit"),
        (damage(GOOD, "shape", [-2, -3]), "greater than or equal to 0"),
        (damage(GOOD, "dtype", "F31"), "safetensors header"),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, data: bytes, message: str) -> None:
    with pytest.raises(DataCorrupt, match=message):
        header_of(tmp_path / "x", data)
