"""Images one behind the other in one file, each distinct one once: a run has hundreds of thousands.

A record is the PNG's sha256, its length and the PNG. So a file says itself what it holds, a place in it can be checked,
and what a crash cuts short is the last record, which is taken off before more is written.
"""

from __future__ import annotations

import hashlib
import os
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from tandem.types import DataCorrupt

PACK = "images.pack"
MOST_BYTES = 64 * 2**20  # of one image
_HEAD = struct.Struct("<32sI")
_SHA256 = re.compile("[0-9a-f]{64}")


class PackWriter:
    """The only writer of one file. `places`: where each image stands, by sha256."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()
        with open(path, "r+b") as file:
            self.places = dict(_records(file))
            self._end = file.truncate(file.tell())

    def add(self, file: BinaryIO, name: str, png: bytes) -> int:
        """Append an image to the file, opened for that, unless it is there; where it stands.

        Raises:
            DataCorrupt: its name is no sha256.
        """
        if name not in self.places:
            if not _SHA256.fullmatch(name):
                raise DataCorrupt(f"an image is named {name[:80]!r}, which is no sha256")
            self.places[name] = self._end
            self._end += file.write(_HEAD.pack(bytes.fromhex(name), len(png)) + png)
        return self.places[name]


def read_image(path: Path, at: int) -> tuple[str, bytes]:
    """The image that stands at a place, and its sha256.

    Raises:
        DataCorrupt: no image stands there, or it is damaged.
    """
    try:
        with open(path, "rb") as file:
            file.seek(at)
            head = file.read(_HEAD.size)
            digest, length = _HEAD.unpack(head) if len(head) == _HEAD.size else (b"", 0)
            png = file.read(length) if length <= MOST_BYTES else b""
    except (OSError, ValueError, OverflowError) as problem:
        raise DataCorrupt(f"{path}: cannot be read at byte {at} ({problem})") from problem
    if not digest or hashlib.sha256(png).digest() != digest:
        raise DataCorrupt(f"{path}: holds no whole image at byte {at}; what names it cannot be shown")
    return digest.hex(), png


def _records(file: BinaryIO) -> Iterator[tuple[str, int]]:
    """Digest and place of what is whole; leaves the file where that ends."""
    end, size = 0, os.fstat(file.fileno()).st_size
    while end + _HEAD.size <= size:
        file.seek(end)
        digest, length = _HEAD.unpack(file.read(_HEAD.size))
        if end + _HEAD.size + length > size:
            break
        yield digest.hex(), end
        end += _HEAD.size + length
    file.seek(end)
