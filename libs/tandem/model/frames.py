"""Frames: an environment's image, encoded as PNG once per distinct picture. No torch: the rollout core uses this."""

from __future__ import annotations

import hashlib
import io
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tandem.model.lru import LRU

CACHED_BYTES = 512 * 2**20


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """One image, named by the sha256 of its PNG bytes. `pixels`: uint8 [H, W, 3], read-only."""

    sha256: str
    png: bytes
    pixels: NDArray[np.uint8]


class FrameCache:
    """Makes frames; a picture seen lately, within `size` bytes, is not encoded again. Not for several threads."""

    def __init__(self, size: int = CACHED_BYTES) -> None:
        self._frames: LRU[bytes, Frame] = LRU(size, weigh=lambda frame: frame.pixels.nbytes + len(frame.png))

    def frame(self, pixels: NDArray[np.uint8]) -> Frame:
        """The frame of an image, uint8 [H, W, 3]. Raises ValueError for any other array."""
        if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3:
            raise ValueError(f"an observation's image must be uint8 [H, W, 3], not {pixels.dtype} {list(pixels.shape)}")
        data = pixels.tobytes()  # a copy: an environment may draw its next picture into the same array
        key = hashlib.blake2b(data, digest_size=16, key=repr(pixels.shape).encode()).digest()
        found = self._frames.get(key)
        if found is None:
            kept = np.frombuffer(data, np.uint8).reshape(pixels.shape)
            png = encode_png(kept)
            found = Frame(hashlib.sha256(png).hexdigest(), png, kept)
            self._frames[key] = found
        return found


def encode_png(pixels: NDArray[np.uint8]) -> bytes:
    """PNG bytes of uint8 [H, W, 3]; the same picture gives the same bytes."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format="PNG", compress_level=1)
    return file.getvalue()
