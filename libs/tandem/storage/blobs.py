"""Files under one fsspec URL. A local (or FSx) folder is written with fsync and rename; elsewhere one
upload is atomic.

Where a lease (`tandem.storage.lease`) says who may write, its fence is passed before each change. It is airtight on a
local store, where all becomes visible by a rename out of a staging folder that is this object's own: who takes the
store over has moved that folder away. On S3 the puts are conditional: nothing that another has written is replaced.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from datetime import datetime
from functools import partial
from typing import BinaryIO, cast
from uuid import uuid4

from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from tandem.obs import get_logger
from tandem.runtime import reach
from tandem.storage import measured, objects
from tandem.storage.hashing import measure, read_pieces
from tandem.storage.local import make_alone, sync_folder, write_synced
from tandem.storage.manifest import FOLDER, FileEntry
from tandem.storage.problems import explained
from tandem.types import NotFound, StaleRequest, UserError

log = get_logger(__name__)
# s3fs holds one block in memory per open file; S3 takes 10,000 parts, so files up to 78 GiB.
UPLOAD_BLOCK_BYTES = 8 * 2**20
STAGING = ".staging"
SWEPT = ".swept-"  # a staging folder on its way out
PROBE = "probe-"
Fence = Callable[[], None]  # raises where this process may no longer write


class BlobStore:
    """Files by path relative to `url`. Every failure is one of Tandem's exceptions and names the file."""

    def __init__(
        self, url: str, *, fence: Fence = lambda: None, staging: str = "", setting: str = "checkpoint.url"
    ) -> None:
        """Open the store, touching nothing. `staging` is where files wait; by default a folder of this object's own.
        `setting` names the field of the config that the URL is from, for errors.

        Raises:
            UserError: no installed backend serves the URL.
        """
        if not url:
            raise UserError(f"the store's URL is empty; set {setting}")
        self.fence = fence
        self.setting = setting
        self.staging = staging or f"{STAGING}/{uuid4().hex[:12]}"
        try:
            self.fs, root = url_to_fs(url, **objects.options(url))
        except (ImportError, ValueError) as problem:
            raise UserError(f"store {url}: {problem}; check {setting}") from problem
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
        with self._explained(f"reading {self.url_of(path)}"):
            return cast(bytes, self.fs.cat_file(self.full(path)))

    def open_read(self, path: str) -> BinaryIO:
        """A file for reading in sequence. Raises NotFound."""
        with self._explained(f"reading {self.url_of(path)}"):
            return cast(BinaryIO, self.fs.open(self.full(path), "rb", block_size=UPLOAD_BLOCK_BYTES))

    def pieces(self, path: str) -> Iterator[bytes]:
        """A file's bytes in pieces of `CHUNK_BYTES`. Raises NotFound."""
        with self._explained(f"reading {self.url_of(path)}"), self.open_read(path) as file:
            yield from measured.read(read_pieces(file), measured.LOCAL if self.local else measured.OBJECT)

    def folders(self, path: str) -> tuple[str, ...]:
        """Names of the folders under `path`, sorted; none where it is missing."""
        return self._names(path, "directory")

    def files(self, path: str) -> tuple[str, ...]:
        """Names of the files under `path`, sorted; none where it is missing."""
        return self._names(path, "file")

    def modified(self, path: str) -> datetime | None:
        """When a file was written, by the store's clock; None where it is gone or the store cannot tell."""
        with self._explained(f"looking at {self.url_of(path)}"), suppress(FileNotFoundError, NotImplementedError):
            return cast(datetime, self.fs.modified(self.full(path)))

    def _names(self, path: str, type_: str) -> tuple[str, ...]:
        with self._explained(f"listing {self.url_of(path)}"):
            try:
                found = self.fs.ls(self.full(path), detail=True)
            except FileNotFoundError:
                return ()
            return tuple(sorted(item["name"].rstrip("/").rpartition("/")[2] for item in found if item["type"] == type_))

    def write(self, path: str, pieces: Iterable[bytes]) -> FileEntry:
        """Write a new file from pieces; a local one is then on disk. A failed write leaves nothing.

        Raises:
            StaleRequest: an object with other content is there: another process writes to this store.
        """
        if not self.local:
            return self._write_object(path, pieces)
        with self._explained(f"writing {self.url_of(path)}", writing=True), ExitStack() as undo:
            os.makedirs(os.path.dirname(self.full(path)), exist_ok=True)
            undo.callback(self._forget, path)
            with open(self.full(path), "wb") as file:
                entry = write_synced(file, pieces)
            undo.pop_all()
        return entry

    def create(self, path: str, data: bytes) -> bool:
        """Write a small file in one atom unless it is there; False where it is, by whomever."""
        if not self.local:
            with self._explained(f"writing {self.url_of(path)}", writing=True):
                self.fence()
                return objects.create(self.fs, self.full(path), data)
        with self._explained(f"writing {self.url_of(path)}", writing=True), self._staged(path, data) as temporary:
            try:
                with self._still_ours():
                    make_alone(temporary, self.full(path), data)
            except FileExistsError:
                return False
            sync_folder(os.path.dirname(self.full(path)))
            return True

    def replace(self, path: str, data: bytes) -> None:
        """Write or replace a small file in one atom."""
        if not self.local:
            with self._explained(f"writing {self.url_of(path)}", writing=True):
                objects.replace(self.fs, self.full(path), data, self.fence)
            return
        with self._explained(f"writing {self.url_of(path)}", writing=True), self._staged(path, data) as temporary:
            reach("manager/replace/written")
            with self._still_ours():
                os.replace(temporary, self.full(path))
            sync_folder(os.path.dirname(self.full(path)))

    def rename_folder(self, source: str, target: str) -> None:
        """Local stores only: make a written folder visible in one atom that survives a power cut."""
        with self._explained(f"writing {self.url_of(target)}", writing=True):
            parent = os.path.dirname(self.full(target))
            os.makedirs(parent, exist_ok=True)
            sync_folder(self.full(source))
            with self._still_ours():
                os.rename(self.full(source), self.full(target))
            sync_folder(parent)
            sync_folder(self.root)

    def remove_file(self, path: str) -> None:
        """Remove a file; it may be gone already."""
        self._remove(path, self.fs.rm_file)
        if self.local:  # a power cut must not bring it back while what it describes is gone
            with self._explained(f"removing {self.url_of(path)}"), suppress(FileNotFoundError):
                sync_folder(os.path.dirname(self.full(path)))

    def remove_folder(self, path: str) -> None:
        """Remove a folder and all in it; it may be gone already."""
        self._remove(path, partial(self.fs.rm, recursive=True))

    def _remove(self, path: str, remove: Callable[[str], object]) -> None:
        with self._explained(f"removing {self.url_of(path)}"), suppress(FileNotFoundError):
            if not self.local:
                self.fence()
                remove(self.full(path))
                return
            gone = self.full(f"{self.staging}/gone-{uuid4().hex[:12]}")
            os.makedirs(os.path.dirname(gone), exist_ok=True)
            with self._still_ours():
                os.rename(self.full(path), gone)
            remove(gone)

    def sweep(self) -> None:
        """Clear what a crash, or a writer that this one replaces, has left: staged files and unfinished uploads."""
        if not self.local:
            self.remove_folder(STAGING)
            with self._explained(f"giving up unfinished uploads below {self.url}"):
                try:
                    for folder in FOLDER.values():  # what else lies below a URL, even a whole bucket, is not ours
                        objects.give_up_uploads(self.fs, self.full(folder))
                except PermissionError as problem:
                    log.warning("unfinished uploads below %s stay: %s", self.url, problem)
            return
        with self._explained(f"clearing {self.url_of(STAGING)}", writing=True), suppress(FileNotFoundError):
            self.fence()  # in one atom: whoever still stages there then renames all that it staged, or nothing
            os.rename(self.full(STAGING), self.full(f"{SWEPT}{uuid4().hex[:12]}"))
        for name in self.folders(""):
            if name.startswith(SWEPT):
                shutil.rmtree(self.full(name), ignore_errors=True)

    def check_writable(self) -> None:
        """Raises UserError where the store cannot be written: better at the start than at the first save."""
        probe = f"{self.staging}/{PROBE}{uuid4().hex[:8]}"
        self.write(probe, [b"tandem"])
        self.remove_file(probe)

    def _write_object(self, path: str, pieces: Iterable[bytes]) -> FileEntry:
        entry: FileEntry | None = None

        def fill(write: Callable[[bytes], object]) -> FileEntry:
            nonlocal entry
            entry = measure(pieces, measured.writing(write, measured.OBJECT))
            return entry

        with self._explained(f"writing {self.url_of(path)}", writing=True):
            self.fence()
            try:
                return objects.write(self.fs, self.full(path), UPLOAD_BLOCK_BYTES, fill)
            except (FileExistsError, FileNotFoundError) as problem:
                # the answer to what ended the upload may have been lost; tried again it meets itself, or no upload
                if entry is not None and self._holds(path, entry):
                    return entry
                self.fence()
                if isinstance(problem, FileNotFoundError):
                    raise
        raise StaleRequest(f"{self.url_of(path)}: another process has written it meanwhile; one alone may write there")

    def _holds(self, path: str, entry: FileEntry) -> bool:
        try:
            return measure(self.pieces(path)) == entry
        except NotFound:
            return False

    def _explained(self, what: str, *, writing: bool = False) -> AbstractContextManager[None]:
        return explained(what, writing=writing, setting=self.setting)

    @contextmanager
    def _staged(self, path: str, data: bytes) -> Iterator[str]:
        """`data` on disk under a temporary name, gone at the end; the folder of `path` is there."""
        temporary = f"{self.staging}/{path.replace('/', '-')}-{uuid4().hex[:8]}"
        self.write(temporary, [data])
        os.makedirs(os.path.dirname(self.full(path)), exist_ok=True)
        try:
            yield self.full(temporary)
        finally:
            self._forget(temporary)

    @contextmanager
    def _still_ours(self) -> Iterator[None]:
        """A rename or link out of the staging folder in the body: refused where another has taken the store over."""
        self.fence()
        try:
            yield
        except FileNotFoundError:
            self.fence()  # tells who has moved the folder away
            raise

    def _forget(self, path: str) -> None:
        try:
            self.fs.rm_file(self.full(path))
        except OSError:
            return  # the error that led here is the one to tell; the sweep at the next start removes the rest
