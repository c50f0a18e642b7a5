"""Files on a local disk: written so that a power cut cannot take them back, and made by one alone."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from typing import BinaryIO

from tandem.storage import measured
from tandem.storage.hashing import behind, measure
from tandem.storage.manifest import FileEntry

SYNC_BYTES = 32 * 2**20


def write_synced(file: BinaryIO, pieces: Iterable[bytes]) -> FileEntry:
    """Write to a local disk, which starts before the last piece is there."""
    fd, written = file.fileno(), 0
    write_measured = measured.writing(file.write, measured.LOCAL)

    def write(piece: bytes) -> None:
        nonlocal written
        write_measured(piece)
        if (written + len(piece)) // SYNC_BYTES > written // SYNC_BYTES:
            sync_later(fd)
        written += len(piece)

    with behind(measured.sync_data) as sync_later:
        entry = measure(pieces, write)
    file.flush()
    measured.sync(fd)
    return entry


def make_alone(source: str, target: str, data: bytes) -> None:
    """Give a written file the name `target`, whole from the first moment on. Raises FileExistsError: it is taken."""
    try:
        os.link(source, target)
    except OSError as problem:
        if problem.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
        with open(target, "xb") as file:  # no links on this file system: one alone still makes it, though not at once
            file.write(data)
            file.flush()
            os.fsync(file.fileno())


def sync_folder(path: str) -> None:
    """Make a local folder's entries durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        measured.sync(fd)
    finally:
        os.close(fd)
