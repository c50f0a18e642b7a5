"""Which published version a command is about."""

from __future__ import annotations

from tandem.storage import Published, VersionStore, read_manifest
from tandem.types import NotFound, PublishKind, UserError

LATEST = "latest"


def open_store(url: str) -> VersionStore:
    """A store that holds something. Raises NotFound where nothing is published, UserError for no such backend."""
    store = VersionStore(url)
    if not any(store.versions(kind) for kind in PublishKind):
        raise NotFound(f"store {store.blobs.url}: nothing is published there; give checkpoint.url of a run")
    return store


def find(store: VersionStore, kind: PublishKind, which: str) -> Published:
    """By version number, `latest`, or the URL of a published folder.

    Raises:
        NotFound: no such version.
        UserError: it is no version at all.
        DataCorrupt: its manifest, or the pointer to the latest, is damaged.
    """
    if "/" in which:
        manifest = read_manifest(which)
        return Published(manifest.ref(which.rstrip("/")), manifest)
    digits = which.removeprefix("v")
    if which != LATEST and not digits.isdecimal():
        raise UserError(f"version {which!r}: give a number, '{LATEST}', or the URL of a published folder")
    found = store.latest(kind) if which == LATEST else store.find(kind, int(digits))
    if found is None:
        there = ", ".join(str(version) for version in store.versions(kind)[-8:]) or "none"
        raise NotFound(f"store {store.blobs.url}: no {kind} {which} is published; the newest are: {there}")
    return found
