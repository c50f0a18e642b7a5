"""Folders that one process alone uses: locked while it lives, swept by the next one where it was killed."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from tandem.obs import get_logger
from tandem.storage import explained

log = get_logger(__name__)
PREFIX = "tandem-adapters-"
MEMORY = Path("/dev/shm")
SETTING = "sync.folder"


class OwnFolder:
    """A new folder `path` below `parent`. The lock on it ends with the process, however that ends."""

    def __init__(self, parent: Path) -> None:
        """Raises UserError where nothing can be written there."""
        with explained(f"making a folder in {parent}", writing=True, setting=SETTING):
            parent.mkdir(parents=True, exist_ok=True)
            _sweep(parent)
            self.path, self._lock = _locked(parent)

    def close(self) -> None:
        """Remove it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def parent_for(setting: str, needed: int) -> Path:
    """Where adapters in use lie: `setting` if given, else memory where `needed` bytes are free, else on disk."""
    if setting:
        return Path(setting)
    disk = Path(tempfile.gettempdir())
    if not os.access(MEMORY, os.W_OK):
        return disk
    if (free := free_bytes(MEMORY)) < needed:
        log.info("%s has %d bytes free, adapters may need %d: they go to %s", MEMORY, free, needed, disk)
        return disk
    return MEMORY


def free_bytes(folder: Path) -> int:
    """Bytes that this user can still write there."""
    there = os.statvfs(folder)
    return there.f_bavail * there.f_frsize


def _locked(parent: Path) -> tuple[Path, int]:
    while True:
        path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        # another process that starts may take it for a dead one's before each of the next two lines
        with suppress(FileNotFoundError):
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if path.exists():
                return path, lock
            os.close(lock)


def _sweep(parent: Path) -> None:
    """Remove the folders of processes that are gone."""
    for path in parent.glob(f"{PREFIX}*"):
        try:
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            continue  # another user's, or just gone
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue  # its owner lives
        else:
            log.info("removing %s, which a process that is gone has left", path)
            shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(lock)
