"""The vocabulary of Tandem as frozen dataclasses. No torch, no protobuf, no I/O: every other part may import this."""

from tandem.types.adapter import AdapterRef, PublishKind, ShardRef
from tandem.types.episode import (
    ContextPolicy,
    FinishReason,
    Sampling,
    StopReason,
    Trajectory,
    TrajectoryGroup,
    Turn,
)
from tandem.types.errors import DataCorrupt, NotFound, StaleRequest, TandemError, Unavailable, UserError

__all__ = [
    "AdapterRef",
    "ContextPolicy",
    "DataCorrupt",
    "FinishReason",
    "NotFound",
    "PublishKind",
    "Sampling",
    "ShardRef",
    "StaleRequest",
    "StopReason",
    "TandemError",
    "Trajectory",
    "TrajectoryGroup",
    "Turn",
    "Unavailable",
    "UserError",
]
