"""Files under one fsspec URL. A local (or FSx) folder is written with fsync and rename; elsewhere one
upload is atomic."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import BinaryIO, cast

from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from tandem.storage.manifest import FileEntry
from tandem.storage.problems import explained
from tandem.storage.shards import CHUNK_BYTES
from tandem.types import UserError

# s3fs holds one block in memory per open file; S3 takes 10,000 parts, so files up to 78 GiB.
UPLOAD_BLOCK_BYTES = 8 * 2**20
STAGING = ".staging"


class BlobStore:
    """Files by path relative to `url`. Every failure is one of Tandem's exceptions and names the file."""

    def __init__(self, url: str) -> None:
        """Open the store, touching nothing. Raises UserError for a URL that no installed backend serves."""
        if not url:
            raise UserError("the store's URL is empty; set checkpoint.url")
        try:
            # Another process may write what this one lists: never answer from a cache of listings.
            remote = "://" in url and not url.startswith(("file://", "local://"))
            self.fs, root = url_to_fs(url, **({"use_listings_cache": False} if remote else {}))
        except (ImportError, ValueError) as problem:
            raise UserError(f"store {url}: {problem}; check checkpoint.url") from problem
        self.local = isinstance(self.fs, LocalFileSystem)
        self.root = os.path.abspath(root) if self.local else root.rstrip("/")
        self.url = self.root if self.local else url.rstrip("/")

    def url_of(self, path: str) -> str:
        """The URL of a file or folder."""
        return f"{self.url}/{path}"

    def full(self, path: str) -> str:
        """The path as the file system behind the URL knows it."""
        return f"{self.root}/{path}" if path else self.root

    def read(self, path: str) -> bytes:
        """A small file, whole. Raises NotFound."""
        with explained(f"reading {self.url_of(path)}"):
            return cast(bytes, self.fs.cat_file(self.full(path)))

    def open_read(self, path: str) -> BinaryIO:
        """A file for reading in sequence. Raises NotFound."""
        with explained(f"reading {self.url_of(path)}"):
            return cast(BinaryIO, self.fs.open(self.full(path), "rb", block_size=UPLOAD_BLOCK_BYTES))

    def folders(self, path: str) -> tuple[str, ...]:
        """Names of the folders under `path`, sorted; none where it is missing."""
        with explained(f"listing {self.url_of(path)}"):
            try:
                found = self.fs.ls(self.full(path), detail=True)
            except FileNotFoundError:
                return ()
            return tuple(
                sorted(item["name"].rstrip("/").rpartition("/")[2] for item in found if item["type"] == "directory")
            )

    def write(self, path: str, pieces: Iterable[bytes]) -> FileEntry:
        """Write a new file from pieces; a local one is then on disk. A failed write leaves nothing."""
        with explained(f"writing {self.url_of(path)}", writing=True), ExitStack() as undo:
            if self.local:
                os.makedirs(os.path.dirname(self.full(path)), exist_ok=True)
            undo.callback(self._forget, path)
            with self._open_write(path) as file:
                entry = measure(pieces, file.write)
                if self.local:
                    file.flush()
                    os.fsync(file.fileno())
            undo.pop_all()
        return entry

    def replace(self, path: str, data: bytes) -> None:
        """Write or replace a small file in one atom."""
        if not self.local:
            with explained(f"writing {self.url_of(path)}", writing=True):
                self.fs.pipe_file(self.full(path), data)
            return
        temporary = f"{STAGING}/{path.replace('/', '-')}"
        self.write(temporary, [data])
        with explained(f"writing {self.url_of(path)}", writing=True):
            os.makedirs(os.path.dirname(self.full(path)), exist_ok=True)
            os.replace(self.full(temporary), self.full(path))
            sync_folder(os.path.dirname(self.full(path)))

    def rename_folder(self, source: str, target: str) -> None:
        """Local stores only: make a written folder visible in one atom that survives a power cut."""
        with explained(f"writing {self.url_of(target)}", writing=True):
            parent = os.path.dirname(self.full(target))
            os.makedirs(parent, exist_ok=True)
            sync_folder(self.full(source))
            os.rename(self.full(source), self.full(target))
            sync_folder(parent)
            sync_folder(self.root)

    def remove_file(self, path: str) -> None:
        """Remove a file; it may be gone already."""
        with explained(f"removing {self.url_of(path)}"):
            try:
                self.fs.rm_file(self.full(path))
            except FileNotFoundError:
                return

    def remove_folder(self, path: str) -> None:
        """Remove a folder and all in it; it may be gone already."""
        with explained(f"removing {self.url_of(path)}"):
            try:
                self.fs.rm(self.full(path), recursive=True)
            except FileNotFoundError:
                return

    def check_writable(self) -> None:
        """Raises UserError where the store cannot be written: better at the start than at the first save."""
        probe = f"{STAGING}/probe"
        self.write(probe, [b"tandem"])
        self.remove_file(probe)

    def _open_write(self, path: str) -> BinaryIO:
        if self.local:
            return open(self.full(path), "wb")
        return cast(BinaryIO, self.fs.open(self.full(path), "wb", block_size=UPLOAD_BLOCK_BYTES))

    def _forget(self, path: str) -> None:
        try:
            self.fs.rm_file(self.full(path))
        except OSError:
            return  # the error that led here is the one to tell; the sweep at the next start removes the rest


def measure(pieces: Iterable[bytes], write: Callable[[bytes], object] = lambda piece: None) -> FileEntry:
    """Hash and count pieces while handing each to `write`."""
    digest, size = hashlib.sha256(), 0
    for piece in pieces:
        write(piece)
        digest.update(piece)
        size += len(piece)
    return FileEntry(digest.hexdigest(), size)


def read_pieces(file: BinaryIO) -> Iterable[bytes]:
    """The rest of a file in pieces of `CHUNK_BYTES`."""
    return iter(lambda: file.read(CHUNK_BYTES), b"")


def sync_folder(path: str) -> None:
    """Make a local folder's entries durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
