"""What is asked of services, and what they say of themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tandem.types.adapter import PublishKind, ShardRef
from tandem.types.episode import ContextPolicy, Sampling


@dataclass(frozen=True, slots=True)
class RolloutTask:
    """Groups to play: one per seed, `group_size` trajectories each, under one policy version.

    With `may_advance` versions newer than `policy_version` are welcome too, turn by turn: each turn names its own.
    """

    env: str
    seeds: tuple[int, ...]
    group_size: int
    policy_version: int
    sampling: Sampling
    context: ContextPolicy
    max_turns: int
    sampling_seed: int
    may_advance: bool = False


@dataclass(frozen=True, slots=True)
class Pushed:
    """An adapter whose `world_size` shards the ranks have sent to a replica; the rest is as it is published with."""

    world_size: int
    adapter_config_json: str
    metadata_json: str = "{}"


@dataclass(frozen=True, slots=True)
class AdapterLoaded:
    """A replica's acknowledgement: it serves `policy_version`, and `probe_logprob` (nats) was seen under it."""

    policy_version: int
    sha256: str
    probe_logprob: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Activity:
    """What a process is busy with: `work` changes as long as it gets anywhere, `waits` are lines on whom it waits for,
    the longest first."""

    work: int = 0
    waits: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RolloutStatus:
    """What a rollout replica is, serves and has done since its start."""

    healthy: bool
    asleep: bool
    policy_version: int
    base_model: str
    max_lora_rank: int
    episodes_running: int
    episodes_done: int
    turns_done: int
    tokens_done: int
    activity: Activity = Activity()


@dataclass(frozen=True, slots=True)
class TrainResult:
    """One optimizer step: the version it made, its figures by name, and by group id and member what each trajectory
    weighed that was learned from."""

    policy_version: int
    metrics: Mapping[str, float]
    advantages: Mapping[str, Mapping[int, float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SnapshotTaken:
    """A copy of one version in the ranks' host memory: its bytes, and the seconds that training stood still."""

    policy_version: int
    size: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Exported:
    """Every rank's shard, now with the checkpoint manager; and by address why a replica did not get all of them."""

    shards: tuple[ShardRef, ...]
    missed: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LearnerStatus:
    """What the learner is. `adapter_config_json` is PEFT's adapter_config.json for its adapter."""

    policy_version: int
    world_size: int
    base_model: str
    trainable_parameters: int
    adapter_config_json: str
    activity: Activity = Activity()


@dataclass(frozen=True, slots=True)
class MirrorStatus:
    """A second store. `durable` is the latest version of each kind there, verified; `backlog` versions are missing."""

    url: str
    durable: Mapping[PublishKind, int]
    backlog: int
    copy_bytes: int
    copy_seconds: float
    problem: str


@dataclass(frozen=True, slots=True)
class CheckpointStatus:
    """What the checkpoint manager has published; bytes and seconds are the last publication's since its start."""

    url: str
    latest: Mapping[PublishKind, int]
    publish_bytes: int
    publish_seconds: float
    problem: str
    mirror: MirrorStatus | None
    activity: Activity = Activity()
