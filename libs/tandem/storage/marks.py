"""What is said of a published version afterwards: its scores, and that it is pinned.

<url>/adapters/v00000012/scores.json    figures by name; replaced as a whole
<url>/adapters/v00000012/pinned         retention leaves this version alone

Beside the manifest, not in it: the version itself stays as it was published.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Annotated

from pydantic import Field, TypeAdapter

from tandem.obs import get_logger
from tandem.storage.manifest import MANIFEST, version_path
from tandem.storage.parse import parse_json
from tandem.storage.retention import Key, Stored
from tandem.storage.versions import VersionStore
from tandem.types import DataCorrupt, NotFound, PublishKind, UserError

log = get_logger(__name__)
SCORES, PIN = "scores.json", "pinned"
_SCORES = TypeAdapter(dict[str, Annotated[float, Field(allow_inf_nan=False)]])


def survey(store: VersionStore) -> Stored:
    """All that is published, with its scores and pins: one listing for each version."""
    versions: dict[PublishKind, list[int]] = {kind: [] for kind in PublishKind}
    scores: dict[Key, Mapping[str, float]] = {}
    pinned = set[Key]()
    for kind in PublishKind:
        for version in store.versions(kind):
            names = store.blobs.files(version_path(kind, version))
            if MANIFEST not in names:
                continue
            versions[kind].append(version)
            if SCORES in names:
                scores[kind, version] = read_scores(store, kind, version)
            if PIN in names:
                pinned.add((kind, version))
    return Stored(versions, scores, pinned)


def read_scores(store: VersionStore, kind: PublishKind, version: int) -> dict[str, float]:
    """The scores of a version; none where none are told, or where they cannot be read, which is logged."""
    path = f"{version_path(kind, version)}/{SCORES}"
    try:
        return parse_json(_SCORES, store.blobs.read(path), store.blobs.url_of(path))
    except NotFound:
        return {}
    except DataCorrupt as problem:
        log.warning("%s; taken for none", problem)
        return {}


def add_scores(store: VersionStore, kind: PublishKind, version: int, scores: Mapping[str, float]) -> None:
    """Add figures to those of a version; one of the same name is replaced.

    Raises:
        NotFound: no such version is published.
        UserError: a figure is not finite.
    """
    _check_published(store, kind, version)
    for name, value in scores.items():
        if not math.isfinite(value):
            raise UserError(f"{kind} v{version}: score {name!r} is {value}; only finite figures can be compared")
    merged = {**read_scores(store, kind, version), **scores}
    data = json.dumps(merged, indent=1, sort_keys=True).encode() + b"\n"
    store.blobs.replace(f"{version_path(kind, version)}/{SCORES}", data)


def pin(store: VersionStore, kind: PublishKind, version: int, pinned: bool = True) -> None:
    """Keep a version from retention, or no longer. Raises NotFound where it is not published."""
    _check_published(store, kind, version)
    path = f"{version_path(kind, version)}/{PIN}"
    if pinned:
        try:
            store.blobs.create(path, b"")
        finally:
            if store.find(kind, version) is None:
                store.blobs.remove_file(path)  # retention was faster: a mark alone is no version
            _check_published(store, kind, version)
    else:
        store.blobs.remove_file(path)


def _check_published(store: VersionStore, kind: PublishKind, version: int) -> None:
    if store.find(kind, version) is None:
        raise NotFound(f"store {store.blobs.url}: no {kind} v{version} is published")
