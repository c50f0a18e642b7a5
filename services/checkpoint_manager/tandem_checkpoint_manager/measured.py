"""What the checkpoint manager records."""

from __future__ import annotations

import time
from datetime import UTC

from tandem.obs import instruments as of
from tandem.obs.metrics import count, gauge, observe
from tandem.storage import VersionStore
from tandem.storage.manifest import MANIFEST, version_path
from tandem.types import AdapterRef, PublishKind


def record_published(kind: PublishKind, ref: AdapterRef, seconds: float) -> None:
    """A version was published just now."""
    observe(of.PUBLISH_TIME, seconds, kind=str(kind))
    count(of.PUBLISHED_BYTES, ref.size, kind=str(kind))
    _latest(kind, ref, time.time())


def record_found(store: VersionStore) -> None:
    """What is published already."""
    for kind in PublishKind:
        if found := store.latest(kind):
            written = store.blobs.modified(f"{version_path(kind, found.ref.version)}/{MANIFEST}")
            if written is not None:
                aware = written if written.tzinfo else written.replace(tzinfo=UTC)
                _latest(kind, found.ref, aware.timestamp())


def _latest(kind: PublishKind, ref: AdapterRef, when: float) -> None:
    gauge(of.CHECKPOINT_VERSION, ref.version, kind=str(kind))
    gauge(of.CHECKPOINT_BYTES, ref.size, kind=str(kind))
    gauge(of.CHECKPOINT_TIMESTAMP, when, kind=str(kind))
