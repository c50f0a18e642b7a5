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
from tandem.types.errors import (
    DataCorrupt,
    Forbidden,
    NotFound,
    StaleRequest,
    TandemError,
    Unavailable,
    UserError,
    exit_code,
)
from tandem.types.member import Death, Identity, Member, Role
from tandem.types.run import MemberStatus, Recovery, RunStatus
from tandem.types.service import (
    AdapterLoaded,
    CheckpointStatus,
    Exported,
    LearnerStatus,
    MirrorStatus,
    Pushed,
    RolloutStatus,
    RolloutTask,
    SnapshotTaken,
    TrainResult,
)

__all__ = [
    "AdapterLoaded",
    "AdapterRef",
    "CheckpointStatus",
    "ContextPolicy",
    "DataCorrupt",
    "Death",
    "Exported",
    "FinishReason",
    "Forbidden",
    "Identity",
    "LearnerStatus",
    "Member",
    "MemberStatus",
    "MirrorStatus",
    "NotFound",
    "PublishKind",
    "Pushed",
    "Recovery",
    "Role",
    "RolloutStatus",
    "RolloutTask",
    "RunStatus",
    "Sampling",
    "ShardRef",
    "SnapshotTaken",
    "StaleRequest",
    "StopReason",
    "TandemError",
    "TrainResult",
    "Trajectory",
    "TrajectoryGroup",
    "Turn",
    "Unavailable",
    "UserError",
    "exit_code",
]
