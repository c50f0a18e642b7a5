"""What a rollout produces: turns, trajectories and groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class StopReason(StrEnum):
    """Why an episode ended. A failure is data, not a crash."""

    TERMINATED = "terminated"  # the environment ended it (goal reached, or a losing end)
    TURN_LIMIT = "turn_limit"
    CONTEXT_LIMIT = "context_limit"  # the transcript no longer fits the engine
    ENV_ERROR = "env_error"
    ENGINE_ERROR = "engine_error"
    DEADLINE = "deadline"

    @property
    def failed(self) -> bool:
        """True where the machinery, not the policy, ended the episode: such a trajectory must not be learned from."""
        return self in (StopReason.ENV_ERROR, StopReason.ENGINE_ERROR, StopReason.DEADLINE)


class FinishReason(StrEnum):
    """Why one completion ended."""

    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, slots=True)
class Sampling:
    """How completions are drawn. `temperature` 0 is greedy."""

    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int = 16


@dataclass(frozen=True, slots=True)
class ContextPolicy:
    """What of the episode the model sees: the last `window` turns, or the whole transcript when `window` is 0."""

    window: int = 0


@dataclass(frozen=True, slots=True)
class Turn:
    """One completion and the environment's reply.

    `prompt_ids` are the ids as the engine saw them, image placeholders expanded; `images` are the sha256 of the
    prompt's images in order of their placeholders. `rollout_logprobs[i]` is the engine's processed logprob of
    `completion_ids[i]`. `reward` is what the environment paid for this turn.
    """

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    rollout_logprobs: tuple[float, ...]
    images: tuple[str, ...]
    policy_version: int
    text: str
    feedback: str
    reward: float
    finish: FinishReason
    parsed: bool = True


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One episode. `task_reward` is the unshaped reward of the task: 1.0 means solved."""

    member: int
    turns: tuple[Turn, ...]
    stop_reason: StopReason
    task_reward: float
    error: str = ""  # what went wrong, where `stop_reason.failed` or not even the first prompt fits
    metrics: Mapping[str, float] = field(default_factory=dict)  # of the environment: shortest path, wall hits, ...

    @property
    def total_return(self) -> float:
        """Sum of the turns' rewards."""
        return float(sum(turn.reward for turn in self.turns))

    @property
    def solved(self) -> bool:
        """True where the task reward is 1.0, whatever shaping was added."""
        return self.task_reward >= 1.0

    @property
    def oldest_version(self) -> int:
        """Oldest policy version among the turns; -1 for an episode without a turn."""
        return min((turn.policy_version for turn in self.turns), default=-1)


@dataclass(frozen=True, slots=True)
class TrajectoryGroup:
    """The trajectories of one task seed, all from the same start. `images` maps sha256 to PNG bytes, each once."""

    group_id: str
    env: str
    seed: int
    policy_version: int
    trajectories: tuple[Trajectory, ...]
    images: Mapping[str, bytes]
    seconds: float = 0.0  # wall time from first prompt to last reply

    @property
    def oldest_version(self) -> int:
        """Oldest policy version in the group: what staleness is measured from."""
        return min((t.oldest_version for t in self.trajectories if t.turns), default=self.policy_version)

    @property
    def valid_members(self) -> tuple[Trajectory, ...]:
        """The trajectories that the policy, not the machinery, ended: others say nothing about the policy."""
        return tuple(trajectory for trajectory in self.trajectories if not trajectory.stop_reason.failed)

    @property
    def has_signal(self) -> bool:
        """True where two valid trajectories have different returns: else every advantage of the group is zero."""
        return len({trajectory.total_return for trajectory in self.valid_members}) > 1
