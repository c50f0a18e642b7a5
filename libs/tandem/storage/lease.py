"""One writer a store. Who writes holds the lease: the newest file of <url>/lease/, one file for each holder in turn.

    lease/00000007.json     host, pid, since, and a count that its holder raises every few seconds

Taking the store over means to make the next file, which every store lets only one process do (a link locally, a
conditional put on S3). From then on the former holder is fenced: it looks for a newer file right before whatever it
makes visible. No clock of another machine is asked: a store is free when its holder has given it back, when it was a
process of this machine that is dead, or when its count has stood still for its lifetime by the asker's own clock.
"""

from __future__ import annotations

import json
import os
import re
import socket
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

from pydantic import TypeAdapter

from tandem.obs import get_logger
from tandem.runtime import Background, poll
from tandem.storage.blobs import PROBE, BlobStore
from tandem.storage.parse import parse_json
from tandem.storage.tensors import Natural
from tandem.types import DataCorrupt, NotFound, TandemError, UserError

log = get_logger(__name__)
FOLDER = "lease"
PROC = Path("/proc")
LIFETIME_S = 15.0
BEATS = 4  # in a lifetime
_DIGITS = re.compile(r"\d{8,}")
_NAME = re.compile(r"(\d{8,})\.json")


@dataclass(frozen=True, slots=True)
class Process:
    """A process, told from a later one of the same number by when it began, on a machine told by its boot."""

    machine: str  # boot id and PID namespace: where `pid` means this process
    pid: Natural
    began: str  # clock ticks since boot

    @staticmethod
    def current() -> Process:
        """This one."""
        pid = os.getpid()
        return Process(_machine(), pid, _began(pid))

    @property
    def dead(self) -> bool:
        """True only where that is certain."""
        return bool(self.began) and self.machine == _machine() and _has_gone(self)


@dataclass(frozen=True, slots=True)
class Holder:
    """Who may write. `since` is for people; nothing is computed from it."""

    id: str
    host: str
    process: Process
    since: str
    lifetime_s: float
    beats: Natural = 0
    released: bool = False

    def __str__(self) -> str:
        return f"host {self.host}, pid {self.process.pid}, since {self.since}"

    def encode(self) -> bytes:
        """As stored."""
        return json.dumps(asdict(self), indent=1).encode() + b"\n"


_HOLDER = TypeAdapter(Holder)


class Lease:
    """The right to write to one store, kept by a thread of its own until `release`; made by `acquire`."""

    def __init__(self, blobs: BlobStore, number: int, holder: Holder) -> None:
        self._blobs = blobs
        self._number = number
        self._holder = holder
        self._told = ""
        self._beating = Background("lease", self._beat)
        self._beating.start()

    def check(self) -> None:
        """The fence. Raises UserError where the store has another holder: nothing may be written there any more."""
        newest = _newest(self._blobs)
        if newest == self._number:
            return
        other = _read(self._blobs, newest) if newest else None
        raise UserError(
            f"store {self._blobs.url}: taken over by {other or 'another process'}; this manager (pid {os.getpid()}) "
            f"has lost its lease of {self._holder.lifetime_s:g} s and writes nothing more there"
        )

    def release(self) -> None:
        """Give the store back: the next one need not wait."""
        self._beating.stop()
        try:
            self.check()
            self._put(replace(self._holder, released=True))
        except TandemError as problem:
            log.warning("%s", problem)

    def _beat(self) -> float:
        try:
            self.check()
            self._put(replace(self._holder, beats=self._holder.beats + 1))
        except TandemError as problem:
            if str(problem) != self._told:
                log.error("%s", problem)
            self._told = str(problem)
        else:
            self._told = ""
        return self._holder.lifetime_s / BEATS

    def _put(self, holder: Holder) -> None:
        self._blobs.replace(_path(self._number), holder.encode())
        self._holder = holder


def acquire(url: str, lifetime_s: float = LIFETIME_S, setting: str = "checkpoint.url") -> Lease:
    """Become the store's writer. Takes up to the lifetime of one that holds it and is not known to have ended.

    Raises:
        UserError: another process holds the store, or it cannot be written.
    """
    blobs = BlobStore(url, staging=FOLDER, setting=setting)
    blobs.check_writable()
    number = _free(blobs) + 1
    now = datetime.now(UTC).isoformat(timespec="seconds")
    mine = Holder(uuid4().hex, socket.gethostname(), Process.current(), now, lifetime_s)
    if not blobs.create(_path(number), mine.encode()):
        other = _read(blobs, number)
        if other is None or other.id != mine.id:  # else our own put was tried again after its answer was lost
            raise UserError(
                f"store {blobs.url}: {other or 'another process'} has just taken it; stop that manager, "
                f"or choose another {setting}"
            )
    lease = Lease(blobs, number, mine)
    try:
        for name in blobs.files(FOLDER):
            found = _DIGITS.search(name)  # in the name of a put that was cut short, too
            if name.startswith(PROBE) or (found and int(found[0]) < number):
                blobs.remove_file(f"{FOLDER}/{name}")
    except TandemError:
        lease.release()
        raise
    return lease


def _free(blobs: BlobStore) -> int:
    """The number of the newest lease once it is free; 0 where there was none.

    A holder that lives has one lifetime to end: the manager of a run that was killed follows it after a moment.

    Raises:
        UserError: it is held.
    """
    number = _newest(blobs)
    seen = _read(blobs, number)
    if not number or _has_ended(seen):
        return number
    log.warning("store %s: %s holds it; watching whether it ends", blobs.url, seen or "a process unknown")
    lifetime_s = seen.lifetime_s if seen else LIFETIME_S

    def ended() -> int | None:
        newest = _newest(blobs)
        return newest if _has_ended(_read(blobs, newest)) else None

    if (found := poll(ended, every_s=min(0.5, lifetime_s / BEATS), for_s=lifetime_s)) is not None:
        return found
    newest = _newest(blobs)
    now = _read(blobs, newest)
    if (newest, now) == (number, seen):
        return number  # no sign of life
    raise UserError(
        f"store {blobs.url}: {now or 'another process'} writes it; stop that manager, or choose another {blobs.setting}"
    )


def _has_ended(holder: Holder | None) -> bool:
    return holder is not None and (holder.released or holder.process.dead)


def _newest(blobs: BlobStore) -> int:
    return max((_number(name) or 0 for name in blobs.files(FOLDER)), default=0)


def _read(blobs: BlobStore, number: int) -> Holder | None:
    """None where the file is gone or not readable as a lease."""
    try:
        return parse_json(_HOLDER, blobs.read(_path(number)), blobs.url_of(_path(number)))
    except (NotFound, DataCorrupt):
        return None


def _path(number: int) -> str:
    return f"{FOLDER}/{number:08d}.json"


def _number(name: str) -> int | None:
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


def _machine() -> str:
    """Empty where the machine cannot tell its boots apart: then no process is ever taken for dead."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}:{os.stat('/proc/self/ns/pid').st_ino}"
    return uuid4().hex


def _began(pid: int) -> str:
    """When a running process began; empty for one that is dead, a zombie, or not to be seen."""
    try:
        fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


def _has_gone(process: Process) -> bool:
    if began := _began(process.pid):
        return began != process.began
    if (PROC / str(process.pid)).exists():
        return True  # a zombie
    try:  # /proc may be there for one's own processes alone
        os.kill(process.pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False  # another user's
    return False
