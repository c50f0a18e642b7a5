"""The folder where shards wait to be joined, and shards that a rank writes there itself.

A rank that shares the manager's file system may write its shard there instead of sending its bytes. No path travels:
where the file lies follows from the store's URL, and its name from the shard's reference.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from io import BufferedReader
from pathlib import Path
from tempfile import gettempdir
from uuid import uuid4

from tandem.storage.blobs import STAGING, BlobStore
from tandem.storage.problems import explained
from tandem.types import DataCorrupt, NotFound, PublishKind, ShardRef, UserError

_SHA256 = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"(\w+)-v(\d{8,})-rank\d{5,}-.*")
_HINT = "learner and manager must share the folder of checkpoint.url; else set checkpoint.shards=grpc"


def shard_name(ref: ShardRef) -> str:
    """How errors name a shard."""
    return f"shard of {ref.kind} v{ref.version}, rank {ref.rank} of {ref.world_size}"


def spool_folder(url: str) -> Path:
    """Where shards wait: on the store's own disk, or for an object store in a temporary folder of its own."""
    blobs = BlobStore(url)
    if blobs.local:
        return Path(blobs.full(STAGING)) / "shards"
    name = hashlib.sha256(blobs.url.encode()).hexdigest()[:16]
    return Path(gettempdir()) / f"tandem-spool-{os.getuid()}-{name}"


def file_name(ref: ShardRef) -> str:
    """The name of a shard's file. Raises UserError where the reference, from the wire, cannot make a name."""
    if not _SHA256.fullmatch(ref.sha256):
        raise UserError(f"{shard_name(ref)}: {ref.sha256[:80]!r} is no sha256 in hex")
    return f"{ref.kind}-v{ref.version:08d}-rank{ref.rank:05d}-{ref.sha256}.safetensors"


def version_of(name: str) -> tuple[str, int] | None:
    """Kind and version of a shard's file, finished or not, by its name; None for other files."""
    match = _NAME.fullmatch(name)
    return (match[1], int(match[2])) if match else None


def write_shard(url: str, ref: ShardRef, pieces: Iterable[bytes]) -> None:
    """Write a shard into the folder where the manager of the store at `url` looks for it. Blocks.

    Raises:
        UserError: the folder is not there, which the manager has made where it sees the same disk, or takes no more.
    """
    folder = spool_folder(url)
    path = folder / file_name(ref)
    partial = path.with_name(f"{path.name}.{uuid4().hex[:8]}")
    if not folder.is_dir():
        raise UserError(f"{shard_name(ref)}: no folder {folder} here; {_HINT}")
    with explained(f"writing {path}", writing=True), ExitStack() as undo:
        undo.callback(partial.unlink, missing_ok=True)
        with open(partial, "xb") as file:
            for piece in pieces:
                file.write(piece)
        os.replace(partial, path)


def open_written(folder: Path, ref: ShardRef) -> BufferedReader:
    """The file of a shard that its rank has written into `folder`; a link or anything but a file is refused.

    Raises:
        NotFound: there is none.
        DataCorrupt: it is not a file, or of another size.
    """
    path, what = folder / file_name(ref), shard_name(ref)
    try:
        with explained(f"reading the {what}"):
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except NotFound as problem:
        raise NotFound(f"{what}: its rank has written no {path}; {_HINT}") from problem
    with ExitStack() as undo:
        undo.callback(os.close, fd)
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise DataCorrupt(f"{what}: {path} is no file")
        if found.st_size != ref.size:
            raise DataCorrupt(f"{what}: truncated: {path} has {found.st_size} of {ref.size} bytes")
        undo.pop_all()
    return open(fd, "rb")


def sweep(folder: Path, kind: PublishKind, first: int, last: int) -> None:
    """Remove the shard files of versions `first` to `last`, finished or not."""
    with explained(f"clearing {folder}"), suppress(FileNotFoundError):
        for entry in os.scandir(folder):
            found = version_of(entry.name)
            if found and found[0] == kind and first <= found[1] <= last and not entry.is_dir(follow_symlinks=False):
                Path(entry).unlink(missing_ok=True)
