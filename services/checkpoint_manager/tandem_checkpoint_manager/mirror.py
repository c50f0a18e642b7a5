"""The mirror: everything published is copied to a second store, in the background, read back and verified there.

Training never waits for it. What fails is tried again, later each time; what a stop cut short, the next start copies.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from threading import Lock

from tandem.obs import get_logger
from tandem.runtime import Background, poll
from tandem.storage import (
    FileEntry,
    Key,
    Lease,
    Published,
    Retention,
    Stored,
    VersionStore,
    acquire,
    add_scores,
    check_entry,
    check_same_run,
    pin,
    survey,
    to_remove,
    version_path,
)
from tandem.types import DataCorrupt, MirrorStatus, NotFound, PublishKind, TandemError, Unavailable, UserError

log = get_logger(__name__)
FIRST_RETRY_S, LAST_RETRY_S = 1.0, 60.0
MOST_DOUBLINGS = 10
SETTING = "checkpoint.also_to"
DRAIN_S = 10.0  # what a stop grants for what is yet to be copied


@dataclass(frozen=True, slots=True)
class Target:
    """The second store while this process may write it."""

    lease: Lease
    store: VersionStore


class Mirror:
    """Copies from one store to the one at `url`, on a thread of its own."""

    def __init__(
        self, source: VersionStore, url: str, retention: Retention, *, rewind_to: int | None = None, lease_s: float = 15
    ) -> None:
        """Start; nothing here fails. `rewind_to` is for a run that resumes there: what is newer goes there, too."""
        self.url = url
        self._source = source
        self._retention = retention
        self._rewind_to = rewind_to
        self._lease_s = lease_s
        self._target: Target | None = None
        self._lock = Lock()
        self._durable = set[Key]()  # copied or found by this process, and read back
        self._let_go = frozenset[Key]()  # what the retention would remove there at once
        self._last = 0, 0.0
        self._failures = 0
        self._problem = ""
        self._thread = Background("mirror", self._work)
        self._thread.start()

    def wake(self) -> None:
        """Something was published, or said of what is."""
        self._thread.wake()

    def status(self) -> MirrorStatus:
        """How far it is."""
        backlog = len(self._backlog())
        with self._lock:
            durable, last, problem = sorted(self._durable, key=lambda key: key[1]), self._last, self._problem
        if not self._thread.alive:
            problem = "ended by an error that the log shows; start the manager anew"
        return MirrorStatus(self.url, dict(durable), backlog, *last, problem)

    def close(self) -> None:
        """Stop, at the latest after `DRAIN_S` seconds of copying what is left."""
        try:
            poll(
                lambda: None if self._thread.alive and not self._problem and self._backlog() else 0,
                every_s=0.1,
                for_s=DRAIN_S,
            )
            self._thread.stop()
            if left := len(self._backlog()):
                log.warning("mirror %s: %d versions are not there yet; the next start copies them", self.url, left)
        except TandemError as problem:
            log.warning("mirror %s: what is not there yet is not known: %s", self.url, problem)
        finally:
            self._thread.stop()
            if self._target:
                self._target.lease.release()

    def _backlog(self) -> set[Key]:
        here = survey(self._source).keys
        with self._lock:
            return here - self._durable - self._let_go

    def _work(self) -> float | None:
        try:
            self._source.blobs.fence()
            self._target = self._target or self._open()
            self._catch_up(self._target.store)
        except TandemError as problem:
            return self._failed(problem)
        self._failures = 0
        with self._lock:
            self._problem = ""
        return None

    def _failed(self, problem: TandemError) -> float:
        seconds = min(LAST_RETRY_S, FIRST_RETRY_S * 2.0 ** min(self._failures, MOST_DOUBLINGS))
        self._failures += 1
        with self._lock:
            known, self._problem = self._problem, str(problem)
        if known != str(problem) and not self._thread.stopping:
            log.warning("mirror %s is behind, trying again in %.0f s: %s", self.url, seconds, problem)
        if self._target and isinstance(problem, UserError):
            self._target.lease.release()  # what a person has to mend may be a lease that was lost
            self._target = None
        return seconds

    def _open(self) -> Target:
        lease = acquire(self.url, self._lease_s, SETTING)
        try:
            store = VersionStore(self.url, lease.check, SETTING)
            check_same_run(self._source, store)  # before anything is removed there
            store.recover(self._rewind_to)
        except BaseException:
            lease.release()
            raise
        self._rewind_to = None  # from here on what is newer is this run's
        return Target(lease, store)

    def _catch_up(self, target: VersionStore) -> None:
        """Copy what is missing, oldest first, weights before the state that needs them; then apply the retention."""
        damaged: DataCorrupt | None = None
        tried = set[Key]()
        while missing := self._missing(target) - tried:
            key = min(missing, key=lambda key: (key[1], key[0] is PublishKind.STATE))
            tried.add(key)
            try:
                self._copy(target, key)
            except NotFound:
                continue  # the source's retention was faster
            except DataCorrupt as problem:
                damaged = problem  # the others can be copied all the same
        stored = survey(target)
        self._mark(target, stored)
        there = stored.keys
        for kind, version in self._let_go:
            if (kind, version) in there:
                target.remove(kind, version)
        with self._lock:
            self._durable &= there - self._let_go
        if damaged:
            raise damaged

    def _missing(self, target: VersionStore) -> set[Key]:
        """What the source has and the target, after its own retention, should have."""
        here, there = survey(self._source), survey(target)
        versions = {kind: {*here.versions[kind], *there.versions[kind]} for kind in PublishKind}
        both = Stored(versions, {**there.scores, **here.scores}, {*there.pinned, *here.pinned})
        with self._lock:
            self._let_go = frozenset(to_remove(both, self._retention))
        return here.keys - self._durable - self._let_go

    def _copy(self, target: VersionStore, key: Key) -> None:
        began, (kind, version) = time.monotonic(), key
        wanted = self._source.find(kind, version)
        if wanted is None:
            return
        if not self._present(target, wanted):
            manifest = wanted.manifest
            files = {name: self._pieces(wanted, name, entry) for name, entry in manifest.files.items()}
            target.commit(kind, version, manifest.base_model, files, manifest.metadata)
            if not self._present(target, wanted):
                raise DataCorrupt(f"{target.blobs.url_of(version_path(kind, version))}: was not kept as it was sent")
        _point_to_newest(target, kind)
        with self._lock:
            self._durable.add(key)
            self._last = wanted.ref.size, time.monotonic() - began
        log.info("%s v%d is durable at %s: %d bytes in %.1f s", kind, version, self.url, *self._last)

    def _present(self, target: VersionStore, wanted: Published) -> bool:
        """Whether the target has it, whole: every byte is read back. What is damaged there is removed."""
        kind, version = wanted.manifest.kind, wanted.manifest.version
        try:
            found = target.find(kind, version)
            if found and found.manifest == wanted.manifest:
                target.verify(found)
        except DataCorrupt as problem:
            log.warning("%s; it is copied anew", problem)
            target.remove(kind, version)
            return False
        if found and found.manifest != wanted.manifest:
            raise UserError(f"{found.ref.url} is another run's {kind} v{version}; choose another {SETTING}")
        return found is not None

    def _pieces(self, wanted: Published, name: str, entry: FileEntry) -> Iterator[bytes]:
        """A file of the source, which must be the one that its manifest names."""
        path = f"{version_path(wanted.manifest.kind, wanted.manifest.version)}/{name}"
        digest, size = hashlib.sha256(), 0
        for piece in self._source.blobs.pieces(path):
            if self._thread.stopping:
                raise Unavailable(f"stopped while {path} was copied")
            digest.update(piece)
            size += len(piece)
            yield piece
        check_entry(FileEntry(digest.hexdigest(), size), entry, self._source.blobs.url_of(path))

    def _mark(self, target: VersionStore, there: Stored) -> None:
        """Scores and pins go with what they are said of, whenever that was and whoever was down then."""
        here = survey(self._source)
        for key in self._durable & here.keys & there.keys:
            told, known = here.scores.get(key, {}), there.scores.get(key, {})
            if {**known, **told} != known:
                add_scores(target, *key, told)
            if (key in here.pinned) != (key in there.pinned):
                pin(target, *key, pinned=key in here.pinned)


def _point_to_newest(target: VersionStore, kind: PublishKind) -> None:
    try:
        pointed = target.latest(kind)
    except DataCorrupt as problem:
        log.warning("%s; it is pointed anew", problem)
        pointed = None
    if (newest := target.newest(kind)) and newest != pointed:
        target.point(kind, newest.ref)
