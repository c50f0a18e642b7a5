"""Reading what is published, from any process, checked against every hash before a byte is used."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from pydantic import TypeAdapter
from safetensors import safe_open

from tandem.storage.blobs import BlobStore
from tandem.storage.hashing import measure, read_pieces
from tandem.storage.manifest import MANIFEST, METADATA_FILE, TENSOR_FILE, Manifest, parse_manifest
from tandem.storage.parse import parse_json
from tandem.storage.problems import explained
from tandem.storage.versions import Published, VersionStore, check_entry
from tandem.types import AdapterRef, DataCorrupt, NotFound, PublishKind

_METADATA = TypeAdapter(dict[str, Any])
CACHED_VERSIONS = 4  # an engine may still read the one before the last


def latest(url: str, kind: PublishKind = PublishKind.ADAPTER) -> Published:
    """The latest version in the store at `url`.

    Raises:
        NotFound: nothing is published there.
        DataCorrupt: the pointer or the manifest is damaged.
    """
    found = VersionStore(url).latest(kind)
    if found is None:
        raise NotFound(f"store {url}: no {kind} is published")
    return found


def read_manifest(where: AdapterRef | str) -> Manifest:
    """The manifest of a published folder, by reference or by the folder's URL.

    Raises:
        NotFound: nothing is published there.
        DataCorrupt: the manifest is damaged, or not the one that the reference names.
    """
    return _open(where)[1]


def read_metadata(found: Published) -> dict[str, Any]:
    """What a version was published with.

    Raises:
        DataCorrupt: the file that holds it is missing or differs from the manifest.
    """
    entry = found.manifest.files.get(METADATA_FILE)
    if entry is None:
        return dict(found.manifest.metadata)
    blobs = BlobStore(found.ref.url)
    what = blobs.url_of(METADATA_FILE)
    try:
        data = blobs.read(METADATA_FILE)
    except NotFound as problem:
        raise DataCorrupt(f"{what}: missing") from problem
    check_entry(measure([data]), entry, what)
    return parse_json(_METADATA, data, what)


def read_adapter(where: AdapterRef | str, cache: Path | None = None) -> Path:
    """A published folder (of an adapter or a state) as a local folder, every file verified.

    A local store's folder is verified where it lies. One from an object store is loaded to `cache` (default
    $XDG_CACHE_HOME/tandem) under a name of its own per version and content; the newest few per store stay.

    Raises:
        NotFound: nothing is published there.
        DataCorrupt: a file is missing or differs from the manifest, or the manifest from the reference.
    """
    blobs, manifest = _open(where)
    if blobs.local:
        _verify(Path(blobs.root), manifest)
        return Path(blobs.root)
    ref = manifest.ref(blobs.url)
    store = hashlib.sha256(blobs.url.rpartition("/")[0].encode()).hexdigest()[:16]
    target = (cache or _cache_folder()) / store / f"{ref.name}-{ref.sha256[:12]}"
    if target.is_dir():
        _verify(target, manifest)
        return target
    with explained(f"writing {target}", writing=True):
        _download(blobs, manifest, target)
        _trim(target)
    return target


@contextmanager
def open_tensors(where: AdapterRef | str, framework: str = "numpy", cache: Path | None = None) -> Iterator[Any]:
    """The tensors of a published folder, verified, as safetensors' `safe_open`: keys(), get_slice(name)[a:b].

    `framework` is "numpy", or "pt" where torch is installed. Raises as `read_adapter`.
    """
    folder = read_adapter(where, cache)
    kind = read_manifest(str(folder)).kind
    with safe_open(folder / TENSOR_FILE[kind], framework=framework) as tensors:
        yield tensors


def _open(where: AdapterRef | str) -> tuple[BlobStore, Manifest]:
    blobs = BlobStore(where if isinstance(where, str) else where.url)
    data = blobs.read(MANIFEST)
    if isinstance(where, AdapterRef) and hashlib.sha256(data).hexdigest() != where.sha256:
        raise DataCorrupt(f"{blobs.url_of(MANIFEST)}: is not the manifest of {where.name} ({where.sha256[:12]}...)")
    return blobs, parse_manifest(data, blobs.url_of(MANIFEST))


def _verify(folder: Path, manifest: Manifest) -> None:
    for name, entry in manifest.files.items():
        path = folder / name
        try:
            with explained(f"reading {path}"), open(path, "rb") as file:
                check_entry(measure(read_pieces(file)), entry, str(path))
        except NotFound as problem:
            raise DataCorrupt(f"{path}: missing") from problem


def _download(blobs: BlobStore, manifest: Manifest, target: Path) -> None:
    temporary = target.with_name(f".{target.name}-{uuid4().hex}")
    temporary.mkdir(parents=True)
    try:
        for name, entry in manifest.files.items():
            with blobs.open_read(name) as source, open(temporary / name, "wb") as copy:
                check_entry(measure(read_pieces(source), copy.write), entry, blobs.url_of(name))
        (temporary / MANIFEST).write_bytes(manifest.encode())
        os.rename(temporary, target)
    except NotFound as problem:
        raise DataCorrupt(f"{blobs.url}: a file of its manifest is missing ({problem})") from problem
    except OSError:
        if not target.is_dir():  # else another process of this machine was faster, with the same content
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _trim(newest: Path) -> None:
    kept = [item for item in newest.parent.iterdir() if item != newest and not item.name.startswith(".")]
    for old in sorted(kept, key=lambda item: item.name)[: -CACHED_VERSIONS + 1]:
        shutil.rmtree(old, ignore_errors=True)


def _cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tandem"
