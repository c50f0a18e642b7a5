"""How manager and mirror fare, for whoever asks."""

from __future__ import annotations

from tandem.types import CheckpointStatus, PublishKind, TandemError
from tandem_checkpoint_manager.core import CheckpointManager
from tandem_checkpoint_manager.mirror import Mirror


def checkpoint_status(manager: CheckpointManager, mirror: Mirror | None) -> CheckpointStatus:
    """What is published. Raises DataCorrupt where a pointer is damaged."""
    store, problem = manager.store, manager.problem
    try:
        store.blobs.fence()
    except TandemError as lost:
        problem = str(lost)
    latest = {kind: found.ref.version for kind in PublishKind if (found := store.latest(kind))}
    return CheckpointStatus(store.blobs.url, latest, *manager.last, problem, mirror and mirror.status())
