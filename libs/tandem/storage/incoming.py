"""Shards on their way in: each is spooled to a file and hashed, and kept until its version is joined."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Lock
from uuid import uuid4
from zlib import crc32

from tandem.runtime import WAITS, reach
from tandem.storage.hashing import read_pieces
from tandem.storage.problems import explained
from tandem.storage.shards import CHUNK_BYTES, OpenShard, Shard, read_shard
from tandem.storage.spool import file_name, open_written, shard_name, sweep
from tandem.types import DataCorrupt, NotFound, PublishKind, ShardRef, StaleRequest, UserError


class Receiver:
    """One shard being received; made by `Staging.receive`."""

    def __init__(self, ref: ShardRef, path: Path, setting: str) -> None:
        self.ref = ref
        self.setting = setting
        self.what = shard_name(ref)
        self.path = path
        self.digest = hashlib.sha256()
        self.crc = self.size = 0
        self.file = open(path, "xb")  # noqa: SIM115 - open from here to `discard`

    def write(self, chunk: bytes) -> None:
        """Take the next bytes. Raises DataCorrupt as soon as there are more than announced."""
        if len(chunk) > CHUNK_BYTES:
            raise UserError(f"{self.what}: a chunk has {len(chunk)} bytes; send at most {CHUNK_BYTES}")
        self.size += len(chunk)
        if self.size > self.ref.size:
            raise DataCorrupt(f"{self.what}: more bytes than the {self.ref.size} announced")
        with explained(f"spooling {self.path}", writing=True, setting=self.setting):
            self.file.write(chunk)
        self.digest.update(chunk)
        self.crc = crc32(chunk, self.crc)
        WAITS.progressed()
        reach("manager/receive/chunk")

    def close(self) -> None:
        """Flush. Raises DataCorrupt where the bytes are not those announced."""
        with explained(f"spooling {self.path}", writing=True, setting=self.setting):
            self.file.close()
        if self.size != self.ref.size:
            raise DataCorrupt(f"{self.what}: truncated: {self.size} of {self.ref.size} bytes came")
        found = self.digest.hexdigest()
        if found != self.ref.sha256:
            raise DataCorrupt(f"{self.what}: sha256 is {found[:12]}..., announced {self.ref.sha256[:12]}...")

    def discard(self) -> None:
        """Forget what was received; harmless after the file has moved on."""
        with suppress(OSError):  # a full disk refuses the rest of the buffer once more; the file is closed all the same
            self.file.close()
        self.path.unlink(missing_ok=True)


class Staging:
    """The shards of versions not yet joined. Methods may be called from several threads."""

    def __init__(
        self,
        folder: Path,
        setting: str = "checkpoint.url",
        anew: str = "delete v{version} to start it anew",
        run: str = "",
    ) -> None:
        """`folder` is local and no one else's: what a crash has left in it goes.

        `setting` names the field of the config that says where it is; `anew` says in errors how a version whose
        shards do not go together is begun anew. Of shards that name a run `run`'s alone are
        taken; empty: any's.
        """
        self.folder = folder
        self.setting = setting
        self.anew = anew
        self.run = run
        self._shards: dict[tuple[PublishKind, int], dict[int, Shard]] = {}
        self._lock = Lock()
        with explained(f"making {folder}", writing=True, setting=setting):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True, mode=0o700)

    @contextmanager
    def receive(self, ref: ShardRef) -> Iterator[Receiver]:
        """Receive a shard in the body; leaving it keeps the shard if it is whole, sound and not in conflict. What an
        older generation of ranks has sent of its version gives way: that one is dead, and nobody publishes it.

        Raises:
            StaleRequest: ranks of a newer generation have sent shards of this version.
            UserError: this rank has sent other bytes for this version, ranks disagree on their number, or the shard is
                of another run.
            DataCorrupt: truncated, changed on the way, or not what it was announced as.
        """
        with self._lock:
            self._check_conflict(ref)
        path = self._path(ref)
        with explained(f"spooling to {self.folder}", writing=True, setting=self.setting):
            receiver = Receiver(ref, self.folder / f"incoming-{uuid4().hex}", self.setting)
        reach("manager/receive/started")
        try:
            yield receiver
            receiver.close()
            with open(receiver.path, "rb") as file:
                shard = read_shard(file.fileno(), ref, receiver.what, receiver.crc)
            reach("manager/receive/checked")
            self._keep(shard, receiver.path, path)
        finally:
            receiver.discard()

    def take(self, ref: ShardRef) -> None:
        """Keep a shard that its rank has written into the folder itself, see `spool.write_shard`.

        Raises:
            NotFound: it is not there.
            StaleRequest, UserError, DataCorrupt: as for `receive`.
        """
        with self._lock:
            self._check_conflict(ref)
        reach("manager/receive/started")
        path, what = self._path(ref), shard_name(ref)
        with open_written(self.folder, ref) as file:
            digest, crc = hashlib.sha256(), 0
            with explained(f"reading the {what}"):
                for piece in read_pieces(file):
                    digest.update(piece)
                    crc = crc32(piece, crc)
            if (found := digest.hexdigest()) != ref.sha256:
                raise DataCorrupt(f"{what}: sha256 of {path} is {found[:12]}..., announced {ref.sha256[:12]}...")
            shard = read_shard(file.fileno(), ref, what, crc)
        reach("manager/receive/checked")
        self._keep(shard, path, path)

    def of(self, kind: PublishKind, version: int) -> dict[int, ShardRef]:
        """The shards held of one version, by rank."""
        with self._lock:
            return {rank: shard.ref for rank, shard in self._shards.get((kind, version), {}).items()}

    @contextmanager
    def opened(self, refs: list[ShardRef], *, check: bool = True) -> Iterator[list[OpenShard]]:
        """Open shards for joining, which checks each once more, for the spool is a disk like any other; not so where
        the caller checks what he makes of them."""
        with ExitStack() as files:
            shards = []
            for ref in refs:
                path = self._path(ref)
                with explained(f"reading the {shard_name(ref)}"):
                    file = files.enter_context(open_written(self.folder, ref))
                shards.append(OpenShard(self._held(ref), file.fileno(), str(path), check))
            yield shards

    def drop(self, kind: PublishKind, version: int) -> bool:
        """Forget the shards of one version; False where there were none."""
        return self._drop(kind, version, version)

    def drop_up_to(self, kind: PublishKind, version: int) -> None:
        """Forget the shards of a version and of older ones: those can no longer be published."""
        self._drop(kind, 0, version)

    def close(self) -> None:
        """Forget everything."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _check_conflict(self, ref: ShardRef) -> None:
        """Under the lock. What older generations have sent of the version is forgotten; the files go with its others.
        Raises StaleRequest, UserError as `receive`."""
        anew = self.anew.format(version=ref.version)
        held = self._shards.get((ref.kind, ref.version), {})
        for rank, other in [(rank, shard.ref) for rank, shard in held.items()]:
            if other.generation < ref.generation:
                del held[rank]
                continue
            if other.generation > ref.generation:
                raise StaleRequest(f"{shard_name(ref)}: the ranks were started anew, and theirs are here")
            if other.world_size != ref.world_size:
                raise UserError(f"{shard_name(ref)}: shards of {other.world_size} ranks are here; {anew}")
            if other.rank == ref.rank and other.sha256 != ref.sha256:
                hashes = f"{other.sha256[:12]}..., now {ref.sha256[:12]}..."
                raise UserError(f"{shard_name(ref)}: other bytes of this rank are here ({hashes}); {anew}")

    def _keep(self, shard: Shard, path: Path, target: Path) -> None:
        ref = shard.ref
        if self.run and shard.run not in ("", self.run):
            raise UserError(f"{shard.what}: is of run {shard.run!r}, not {self.run!r}; stop the other's learner")
        with self._lock, explained(f"spooling {target}", writing=True, setting=self.setting):
            self._check_conflict(ref)
            os.replace(path, target)
            self._shards.setdefault((ref.kind, ref.version), {})[ref.rank] = shard
        reach("manager/receive/kept")

    def _held(self, ref: ShardRef) -> Shard:
        with self._lock:
            held = self._shards.get((ref.kind, ref.version), {}).get(ref.rank)
        if held is None or held.ref != ref:
            raise NotFound(f"{shard_name(ref)}: is no longer here; send it again")
        return held

    def _drop(self, kind: PublishKind, first: int, last: int) -> bool:
        with self._lock:
            gone = [key for key in self._shards if key[0] is kind and first <= key[1] <= last]
            for key in gone:
                del self._shards[key]
            # with those, what a rank has written that ended before it could tell
            sweep(self.folder, kind, first, last)
        return bool(gone)

    def _path(self, ref: ShardRef) -> Path:
        return self.folder / file_name(ref)


def check_complete(staged: Mapping[int, ShardRef], world_size: int, what: str) -> list[ShardRef]:
    """The shards of all ranks, in order. Raises UserError where one is missing, `staged` is of another number, or not
    all are of one generation."""
    for ref in staged.values():
        if ref.world_size != world_size:
            raise UserError(f"{what}: the shards are of {ref.world_size} ranks, not of {world_size}")
    missing = next((rank for rank in range(world_size) if rank not in staged), None)
    if missing is not None:
        raise UserError(f"{what}: no shard of rank {missing} of {world_size} has come; export again, then publish")
    if len(generations := sorted({ref.generation for ref in staged.values()})) > 1:
        raise UserError(f"{what}: the shards are of generations {generations}; export again, then publish")
    return [staged[rank] for rank in range(world_size)]
