"""What was played and what was learned from it, on disk, until a training state that holds it is saved.

    <run>/journal/v00000012-3f9ac2d1.journal     since version 12 was saved, oldest first

A record is a head (kind, key, length), the sha256 of it and its data, and the data: a group as protobuf bytes, images
included, the moment it is whole; or a step as JSON, before the learner is given it: the seeds it learns from, and where
the run is after it. So whoever takes a dead learner's or controller's place learns from the same groups again, and none
is played twice.
What a crash cuts short is the last record of a file, which then counts as not there. The digest in the name is that of
the settings the groups were played with: under others they are not what would be played now.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import chain, count, takewhile
from pathlib import Path
from typing import BinaryIO, NamedTuple

from tandem.obs import get_logger
from tandem.rpc.codec import group_from_bytes, group_to_bytes
from tandem.storage import sync_folder
from tandem.types import TandemError, TrajectoryGroup, UserError

log = get_logger(__name__)
_HEAD = struct.Struct("<cQQ")  # kind, a group's seed or a step's version, length of the data in bytes
_DIGEST_BYTES = 32
_GROUP, _STEP = b"g", b"s"


@dataclass(frozen=True, slots=True)
class Position:
    """What a resume needs beside weights and training state: seeds of the batches drawn from `version` on, and the
    first seed not drawn yet."""

    version: int
    next_seed: int
    ahead: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """One optimizer step: the seeds of the groups it learns from, in order, and where the run is after it."""

    seeds: tuple[int, ...]
    after: Position

    @property
    def version(self) -> int:
        """The version that learns."""
        return self.after.version - 1


class _Record(NamedTuple):
    kind: bytes
    key: int
    data: bytes


class Journal:
    """The folder's only writer. Calls block: make them in a thread, one at a time."""

    def __init__(self, folder: Path, settings: str) -> None:
        """`settings` is a hex digest."""
        self.folder, self.settings = folder, settings
        self._file = self._path(0)

    def groups(self, wanted: Callable[[int], bool] = lambda seed: True) -> Iterator[TrajectoryGroup]:
        """The whole groups there of these settings and of wanted seeds, the later one of a seed last; of a damaged file
        those before the damage."""
        with ExitStack() as stack:
            for file in self._opened(stack):
                for record in _records(file, told=True):
                    if record.kind == _GROUP and wanted(record.key):
                        yield group_from_bytes(record.data)

    def steps(self, since: int) -> tuple[Step, ...]:
        """The steps from version `since` on whose groups are there, without a gap; of one taken twice the later."""
        with ExitStack() as stack:
            return _steps(self._opened(stack), since)

    def learned(self, since: int, until: int) -> Iterator[tuple[Step, list[TrajectoryGroup]]]:
        """What versions `since` .. `until` - 1 learned from, in order, with one step's groups in memory at a time.

        Raises:
            TandemError: a step, or a group of one, is not there.
        """
        with ExitStack() as stack:
            files = self._opened(stack)  # all of them, now: a file that is settled meanwhile can still be read
            steps = deque(step for step in _steps(files, since) if step.version < until)
            seeds = {seed for step in steps for seed in step.seeds}
            pending: dict[int, bytes] = {}
            version = since
            for record in chain.from_iterable(map(_records, files)):
                if record.kind == _GROUP and record.key in seeds:
                    pending[record.key] = record.data
                elif record.kind == _STEP and steps and _step(record.data) == steps[0]:
                    step = steps.popleft()
                    if not pending.keys() >= set(step.seeds):
                        break
                    yield step, [group_from_bytes(pending.pop(seed)) for seed in step.seeds]
                    version += 1
        if version < until:
            raise TandemError(f"{self.folder}: does not hold what version {version} learned from")

    def begin(
        self,
        version: int,
        groups: Iterable[TrajectoryGroup],
        learned: Iterable[tuple[Step, Sequence[TrajectoryGroup]]] = (),
    ) -> None:
        """Start the file of a version that is being saved, with what was learned since, and what is played already and
        not learned from yet.

        The files before it stay until `settle`, for the save may fail.

        Raises:
            UserError: the folder cannot be written.
        """
        path = self._path(version)
        partial = path.with_suffix(".tmp")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with open(partial, "wb") as file:
                for step, members in learned:
                    file.writelines(map(_group_record, members))
                    file.write(_step_record(step))
                file.writelines(map(_group_record, groups))
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
            sync_folder(str(self.folder))
        except OSError as problem:
            raise self._unwritable(problem) from problem
        self._file = path

    def add(self, group: TrajectoryGroup) -> None:
        """Append a group; it is on disk then. Raises UserError where the folder cannot be written."""
        self._append(_group_record(group))

    def add_step(self, step: Step) -> None:
        """Append a step, all groups of which are there; it is on disk then. Raises as `add`."""
        self._append(_step_record(step))

    def settle(self) -> None:
        """The version begun last is saved: nothing older is ever asked for again."""
        for path in self.folder.glob("v*"):
            if path != self._file:
                path.unlink(missing_ok=True)

    def _path(self, version: int) -> Path:
        return self.folder / f"v{version:08d}-{self.settings}.journal"

    def _opened(self, stack: ExitStack) -> list[BinaryIO]:
        paths = sorted(self.folder.glob(f"v*-{self.settings}.journal"))
        return [stack.enter_context(open(path, "rb")) for path in paths]

    def _append(self, record: bytes) -> None:
        try:
            with open(self._file, "ab") as file:
                file.write(record)
                file.flush()
                os.fsync(file.fileno())
        except OSError as problem:
            raise self._unwritable(problem) from problem

    def _unwritable(self, problem: OSError) -> UserError:
        return UserError(
            f"{self.folder}: cannot be written ({problem.strerror}); free space there or choose another run.dir"
        )


def _group_record(group: TrajectoryGroup) -> bytes:
    return _record(_GROUP, group.seed, group_to_bytes(group))


def _step_record(step: Step) -> bytes:
    return _record(_STEP, step.version, json.dumps(asdict(step)).encode())


def _record(kind: bytes, key: int, data: bytes) -> bytes:
    head = _HEAD.pack(kind, key, len(data))
    return head + _digest(head, data) + data


def _digest(head: bytes, data: bytes) -> bytes:
    digest = hashlib.sha256(head)
    digest.update(data)
    return digest.digest()


def _step(data: bytes) -> Step:
    content = json.loads(data)
    after = content["after"]
    ahead = tuple(tuple(seeds) for seeds in after["ahead"])
    return Step(tuple(content["seeds"]), Position(after["version"], after["next_seed"], ahead))


def _steps(files: Iterable[BinaryIO], since: int) -> tuple[Step, ...]:
    found: dict[int, Step] = {}
    seen = set[int]()
    for record in chain.from_iterable(map(_records, files)):
        if record.kind == _GROUP:
            seen.add(record.key)
        elif seen.issuperset((step := _step(record.data)).seeds):
            found[step.version] = step
    return tuple(found[version] for version in takewhile(found.__contains__, count(since)))


def _records(file: BinaryIO, *, told: bool = False) -> Iterator[_Record]:
    """Up to the first that is not whole: where a file is written to meanwhile, that is no damage to be told."""
    file.seek(0)
    size = os.fstat(file.fileno()).st_size
    while (start := file.tell()) < size:
        head = file.read(_HEAD.size)
        kind, key, length = _HEAD.unpack(head) if len(head) == _HEAD.size else (b"", 0, 0)
        digest = file.read(_DIGEST_BYTES)
        data = file.read(min(length, size))
        if kind not in (_GROUP, _STEP) or len(data) != length or _digest(head, data) != digest:
            if told:
                log.warning("%s: cut short at byte %d; groups from there on are played again", file.name, start)
            return
        yield _Record(kind, key, data)
