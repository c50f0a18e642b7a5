"""Hashing beside reading and writing: hashlib and file calls let go of the interpreter, so that two cores share it."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import BinaryIO, TypeVar

from tandem.storage.manifest import FileEntry
from tandem.storage.shards import CHUNK_BYTES

T = TypeVar("T")
AHEAD = 2  # items that may wait: they bound what is held in memory


@contextmanager
def behind(work: Callable[[T], object]) -> Iterator[Callable[[T], None]]:
    """Gives `put(item)`, which has `work` done on items in a thread of its own, in order. All is done at the end.

    `put` waits where more than `AHEAD` items are not done yet; it, or the end, raises what `work` has raised.
    """
    pending: deque[Future[object]] = deque()

    def put(item: T) -> None:
        if len(pending) > AHEAD:
            pending.popleft().result()
        pending.append(thread.submit(work, item))

    with ThreadPoolExecutor(1, "behind") as thread:
        yield put
        for future in pending:
            future.result()


def measure(pieces: Iterable[bytes], write: Callable[[bytes], object] = lambda piece: None) -> FileEntry:
    """Hash and count pieces while handing each to `write`."""
    digest, size = hashlib.sha256(), 0
    with behind(digest.update) as hash_later:
        for piece in pieces:
            hash_later(piece)
            write(piece)
            size += len(piece)
    return FileEntry(digest.hexdigest(), size)


def read_pieces(file: BinaryIO) -> Iterable[bytes]:
    """The rest of a file in pieces of `CHUNK_BYTES`."""
    return iter(lambda: file.read(CHUNK_BYTES), b"")
