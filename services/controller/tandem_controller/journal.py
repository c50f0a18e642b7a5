"""Played groups on disk, from the moment they are whole until what was learned from them is saved.

    <run>/journal/v00000012-3f9ac2d1.groups     what was played since version 12 was saved, oldest first

A record is a head (length, sha256), then the group as protobuf bytes, images included: one write a group. What a crash
cuts short is the last record of a file, which then counts as not played. The digest in the name is that of the
settings the groups were played with: under others they are not what would be played now.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

from tandem.obs import get_logger
from tandem.rpc.codec import group_from_bytes, group_to_bytes
from tandem.storage import sync_folder
from tandem.types import TrajectoryGroup, UserError

log = get_logger(__name__)
_HEAD = struct.Struct("<Q32s")  # length of what follows in bytes, its sha256


class Journal:
    """The folder's only writer. Calls block: make them in a thread, one at a time."""

    def __init__(self, folder: Path, settings: str) -> None:
        """`settings` is a hex digest."""
        self.folder, self.settings = folder, settings
        self._file = folder / f"v{0:08d}-{settings}.groups"

    def read(self) -> dict[int, TrajectoryGroup]:
        """The whole groups there of these settings, by seed; of a file with damage, what comes before it."""
        files = sorted(self.folder.glob(f"v*-{self.settings}.groups"))
        return {group.seed: group for path in files for group in _groups(path)}

    def begin(self, version: int, groups: Iterable[TrajectoryGroup]) -> None:
        """Start the file of a version that is being saved, with what is played already and not learned from yet.

        The files before it stay until `settle`, for the save may fail.

        Raises:
            UserError: the folder cannot be written.
        """
        self._file = self.folder / f"v{version:08d}-{self.settings}.groups"
        partial = self._file.with_suffix(".tmp")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with open(partial, "wb") as file:
                for group in groups:
                    file.write(_record(group))
                file.flush()
                os.fsync(file.fileno())
            partial.replace(self._file)
            sync_folder(str(self.folder))
        except OSError as problem:
            raise self._unwritable(problem) from problem

    def add(self, group: TrajectoryGroup) -> None:
        """Append a group; it is on disk then. Raises UserError where the folder cannot be written."""
        try:
            with open(self._file, "ab") as file:
                file.write(_record(group))
                file.flush()
                os.fsync(file.fileno())
        except OSError as problem:
            raise self._unwritable(problem) from problem

    def settle(self) -> None:
        """The version begun last is saved: nothing older is ever asked for again."""
        for path in self.folder.glob("v*"):
            if path != self._file:
                path.unlink(missing_ok=True)

    def _unwritable(self, problem: OSError) -> UserError:
        return UserError(
            f"{self.folder}: cannot be written ({problem.strerror}); free space there or choose another run.dir"
        )


def _record(group: TrajectoryGroup) -> bytes:
    data = group_to_bytes(group)
    return _HEAD.pack(len(data), hashlib.sha256(data).digest()) + data


def _groups(path: Path) -> Iterator[TrajectoryGroup]:
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        while (start := file.tell()) < size:
            head = file.read(_HEAD.size)
            length, digest = _HEAD.unpack(head) if len(head) == _HEAD.size else (0, b"")
            data = file.read(min(length, size))
            if len(data) != length or hashlib.sha256(data).digest() != digest:
                log.warning("%s: cut short at byte %d; groups from there on are played again", path, start)
                return
            yield group_from_bytes(data)
