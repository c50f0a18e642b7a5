"""Whose versions a store holds: an id made when its first run begins, the same at its mirror.

<url>/store.json    {"id": ...}
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from uuid import uuid4

from pydantic import TypeAdapter

from tandem.storage.parse import parse_json
from tandem.storage.versions import VersionStore
from tandem.types import NotFound, PublishKind, UserError

FILE = "store.json"


@dataclass(frozen=True, slots=True)
class Identity:
    """Of a store and its copies."""

    id: str

    def encode(self) -> bytes:
        """As stored."""
        return json.dumps(asdict(self)).encode() + b"\n"


_IDENTITY = TypeAdapter(Identity)


def identify(store: VersionStore, fresh: bool) -> None:
    """Give a store its id unless it has one; a new one where a `fresh` run begins in it and nothing is there."""
    if _read(store) is None or (fresh and not _holds_any(store)):
        store.blobs.replace(FILE, Identity(uuid4().hex).encode())


def check_same_run(source: VersionStore, copy: VersionStore) -> None:
    """Nothing where `copy` holds copies from `source`; where it holds nothing it is marked as such.

    Raises:
        UserError: it holds versions that are not from there.
    """
    wanted = _read(source)
    if wanted is None:
        raise UserError(f"{source.blobs.url_of(FILE)}: missing; the manager's next start makes it")
    if _read(copy) == wanted:
        return
    if _holds_any(copy):
        raise UserError(f"store {copy.blobs.url} holds another run's versions; choose another {copy.blobs.setting}")
    copy.blobs.replace(FILE, wanted.encode())


def _read(store: VersionStore) -> Identity | None:
    try:
        return parse_json(_IDENTITY, store.blobs.read(FILE), store.blobs.url_of(FILE))
    except NotFound:
        return None


def _holds_any(store: VersionStore) -> bool:
    return any(store.versions(kind) for kind in PublishKind)
