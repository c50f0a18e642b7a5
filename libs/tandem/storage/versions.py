"""Published versions in a store: commit, find, list, remove. What lies where: see `tandem.storage.manifest`.

A version is published once its folder holds a manifest. On a local store the folder is written under another
name, manifest last, fsynced and renamed; an object store has no rename: there the files go to their place and
the manifest follows. The pointer to the latest comes after that; a start mends it where a crash came between.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from tandem.obs import get_logger
from tandem.runtime import reach
from tandem.storage.blobs import BlobStore, Fence
from tandem.storage.hashing import measure
from tandem.storage.manifest import (
    FOLDER,
    MANIFEST,
    POINTER,
    FileEntry,
    Manifest,
    Pointer,
    parse_manifest,
    parse_pointer,
    parse_version,
    version_name,
    version_path,
)
from tandem.types import AdapterRef, DataCorrupt, NotFound, PublishKind, TandemError, UserError

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Published:
    """One published version: its reference and its manifest."""

    ref: AdapterRef
    manifest: Manifest


class VersionStore:
    """The versions under one URL. Any process may read; one alone, the checkpoint manager, may write."""

    def __init__(self, url: str, fence: Fence = lambda: None, setting: str = "checkpoint.url") -> None:
        """`fence` raises where this process may no longer write; `setting` is the field of the config that `url` is
        from. Raises UserError for a URL that cannot be served."""
        self.blobs = BlobStore(url, fence=fence, setting=setting)
        self._left = set[str]()  # what a failed commit could not take back

    def versions(self, kind: PublishKind) -> tuple[int, ...]:
        """Versions with a folder of their own, oldest first; one without a manifest is not published."""
        found = (parse_version(name) for name in self.blobs.folders(FOLDER[kind]))
        return tuple(sorted(version for version in found if version is not None))

    def published(self, kind: PublishKind) -> tuple[Published, ...]:
        """All published versions of a kind, oldest first."""
        found = (self.find(kind, version) for version in self.versions(kind))
        return tuple(item for item in found if item is not None)

    def find(self, kind: PublishKind, version: int) -> Published | None:
        """A published version, or None. Raises DataCorrupt where its manifest is damaged."""
        path = version_path(kind, version)
        try:
            data = self.blobs.read(f"{path}/{MANIFEST}")
        except NotFound:
            return None
        manifest = parse_manifest(data, self.blobs.url_of(f"{path}/{MANIFEST}"))
        if (manifest.kind, manifest.version) != (kind, version):
            raise DataCorrupt(f"{self.blobs.url_of(path)}/{MANIFEST}: describes {manifest.kind} v{manifest.version}")
        return Published(manifest.ref(self.blobs.url_of(path)), manifest)

    def latest(self, kind: PublishKind) -> Published | None:
        """The version that the pointer names, or None where nothing is published.

        Raises:
            DataCorrupt: the pointer is damaged, or names what is not there or differs.
        """
        where = self.blobs.url_of(f"{FOLDER[kind]}/{POINTER}")
        try:
            pointer = parse_pointer(self.blobs.read(f"{FOLDER[kind]}/{POINTER}"), where)
        except NotFound:
            return None
        found = self.find(kind, pointer.version)
        if found is None or found.ref.sha256 != pointer.sha256:
            fault = "is another" if found else "is missing"
            raise DataCorrupt(f"{where}: names version {pointer.version}, whose manifest {fault}")
        return found

    def newest(self, kind: PublishKind) -> Published | None:
        """The newest version with a sound manifest; damaged ones are logged and passed over."""
        for version in reversed(self.versions(kind)):
            try:
                if found := self.find(kind, version):
                    return found
            except DataCorrupt as problem:
                log.error("%s; passed over", problem)
        return None

    def commit(
        self,
        kind: PublishKind,
        version: int,
        base_model: str,
        files: Mapping[str, Iterable[bytes]],
        metadata: Mapping[str, Any],
    ) -> AdapterRef:
        """Write a version whole, make it visible, then the latest. A failure leaves nothing visible."""
        target = version_path(kind, version)
        stage = f"{self.blobs.staging}/{target.replace('/', '-')}" if self.blobs.local else target
        if stage in self._left:
            self.blobs.remove_folder(stage)
            self._left.remove(stage)
        with ExitStack() as undo:
            undo.callback(self._forget, stage)
            entries: dict[str, FileEntry] = {}
            for name, pieces in files.items():
                entries[name] = self.blobs.write(f"{stage}/{name}", pieces)
                reach("manager/publish/file")
            manifest = Manifest(kind, version, base_model, entries, metadata)
            self.blobs.write(f"{stage}/{MANIFEST}", [manifest.encode()])
            reach("manager/publish/manifest")
            if self.blobs.local:
                if self.blobs.files(target) and self.find(kind, version) is None:
                    self.blobs.remove_folder(target)  # what a removal that was cut short has left
                self.blobs.rename_folder(stage, target)
            undo.pop_all()
        reach("manager/publish/visible")
        ref = manifest.ref(self.blobs.url_of(target))
        self.point(kind, ref)
        reach("manager/publish/pointed")
        return ref

    def point(self, kind: PublishKind, ref: AdapterRef) -> None:
        """Make a published version the latest."""
        self.blobs.replace(f"{FOLDER[kind]}/{POINTER}", Pointer(ref.version, ref.sha256).encode())

    def remove(self, kind: PublishKind, version: int) -> None:
        """Unpublish, then remove. The manifest goes first: no reader ever sees half a version."""
        path = version_path(kind, version)
        self.blobs.remove_file(f"{path}/{MANIFEST}")
        reach("manager/remove/manifest")
        self.blobs.remove_folder(path)
        reach("manager/remove/done")

    def verify(self, published: Published) -> None:
        """Hash every file of a version. Raises DataCorrupt naming the first that differs or is missing."""
        for name, entry in published.manifest.files.items():
            path = f"{version_path(published.manifest.kind, published.manifest.version)}/{name}"
            try:
                check_entry(measure(self.blobs.pieces(path)), entry, self.blobs.url_of(path))
            except NotFound as problem:
                raise DataCorrupt(f"{self.blobs.url_of(path)}: missing") from problem

    def recover(self, rewind_to: int | None = None) -> None:
        """Clear what a crash has left: unfinished folders go, the pointer follows the newest whole version.

        With `rewind_to`, adapters newer than that go too. A state that the pointer names is never removed so.

        Raises:
            UserError: a training state newer than `rewind_to` is published: another run's, most likely.
        """
        reach("manager/recover/started")
        self.blobs.sweep()
        reach("manager/recover/swept")
        if rewind_to is not None:
            self._rewind(rewind_to)
        for kind in PublishKind:
            for version in self.versions(kind):
                if self._bare(kind, version):
                    log.warning("removing unfinished %s", self.blobs.url_of(version_path(kind, version)))
                    self.remove(kind, version)
            self._recover_pointer(kind)
        reach("manager/recover/pointed")

    def _bare(self, kind: PublishKind, version: int) -> bool:
        try:
            return self.find(kind, version) is None
        except DataCorrupt as problem:
            # damaged is not unfinished: removing it is a person's decision
            log.error("%s; left as it is", problem)
            return False

    def _rewind(self, version: int) -> None:
        newest = self._newest_state()
        if newest > version:
            raise UserError(
                f"store {self.blobs.url} holds training state v{newest}, "
                f"newer than v{version}; resume that run, or choose another {self.blobs.setting}"
            )
        for kind in PublishKind:
            newer = [item for item in self.versions(kind) if item > version]
            if not newer:
                continue
            if found := self._newest_whole(kind, range(version + 1)):
                self.point(kind, found.ref)
            else:
                self.blobs.remove_file(f"{FOLDER[kind]}/{POINTER}")
            for item in newer:
                self.remove(kind, item)

    def _newest_state(self) -> int:
        """By the pointer; where that is damaged by what is there, for a person may have removed what it names."""
        try:
            state = self.latest(PublishKind.STATE)
        except DataCorrupt as problem:
            log.error("%s; looking at what is there instead", problem)
            states = self.versions(PublishKind.STATE)
            return max((item for item in states if not self._bare(PublishKind.STATE, item)), default=-1)
        return state.manifest.version if state else -1

    def _recover_pointer(self, kind: PublishKind) -> None:
        try:
            latest = self.latest(kind)
        except DataCorrupt as problem:
            log.error("%s; pointing to the newest whole version instead", problem)
            latest = None
        newest = max(self.versions(kind), default=-1)
        if found := self._newest_whole(kind, range(latest.manifest.version + 1 if latest else 0, newest + 1)):
            self.point(kind, found.ref)
            log.warning("%s is the latest of %s again", version_name(found.manifest.version), FOLDER[kind])

    def _newest_whole(self, kind: PublishKind, among: range) -> Published | None:
        for version in reversed([item for item in self.versions(kind) if item in among]):
            try:
                if found := self.find(kind, version):
                    self.verify(found)
                    return found
            except DataCorrupt as problem:
                log.error("%s; not served", problem)
        return None

    def _forget(self, stage: str) -> None:
        try:
            self.blobs.remove_folder(stage)
        except TandemError as problem:
            self._left.add(stage)
            log.warning("%s; the next start removes it", problem)  # the error that led here is the one to tell


def check_entry(found: FileEntry, entry: FileEntry, where: str) -> None:
    """Raises DataCorrupt where the bytes read are not those of the manifest."""
    if found.size != entry.size:
        raise DataCorrupt(f"{where}: {found.size} bytes, the manifest says {entry.size}")
    if found.sha256 != entry.sha256:
        raise DataCorrupt(f"{where}: sha256 is {found.sha256[:12]}..., the manifest says {entry.sha256[:12]}...")
