"""Reading, writing and fsync as metrics: how fast the store is, as this process sees it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator

from tandem.obs.instruments import STORAGE_BYTES, STORAGE_TIME
from tandem.obs.metrics import count, observe, timed

LOCAL, OBJECT = "local", "object"


def read(pieces: Iterable[bytes], store: str) -> Iterator[bytes]:
    """Pieces as they are read; what their taker does with one does not count."""
    rest = iter(pieces)
    while True:
        began = time.perf_counter()
        if (piece := next(rest, None)) is None:
            return
        observe(STORAGE_TIME, time.perf_counter() - began, operation="read", store=store)
        count(STORAGE_BYTES, len(piece), operation="read", store=store)
        yield piece


def writing(write: Callable[[bytes], object], store: str) -> Callable[[bytes], None]:
    """`write`, measured."""

    def measured(piece: bytes) -> None:
        with timed(STORAGE_TIME, operation="write", store=store):
            write(piece)
        count(STORAGE_BYTES, len(piece), operation="write", store=store)

    return measured


def sync(fd: int) -> None:
    """fsync of a local file or folder."""
    with timed(STORAGE_TIME, operation="fsync", store=LOCAL):
        os.fsync(fd)


def sync_data(fd: int) -> None:
    """fdatasync of a local file."""
    with timed(STORAGE_TIME, operation="fsync", store=LOCAL):
        os.fdatasync(fd)
