"""A recorded group as one line of JSON: its fields as `tandem.types` names them, and what is known of it beside.

Ids that a prompt shares with the turn before it are not written again, so an episode's size grows with its length, not
with the square of it. A number that is not finite is written as a string: the file stays JSON, and comes back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Annotated

from pydantic import ConfigDict, Field, TypeAdapter
from pydantic.dataclasses import dataclass

from tandem.types import DataCorrupt, FinishReason, StopReason, Trajectory, TrajectoryGroup, Turn

TRAIN = "train"  # the suite of what was played to be learned from
Spell = Callable[[Sequence[int]], Sequence[str]]  # the text of each token of a completion

_CONFIG = ConfigDict(extra="forbid", ser_json_inf_nan="strings")
_Version = Annotated[int, Field(ge=0, lt=2**63)]


@dataclass(frozen=True, slots=True, config=_CONFIG)
class Label:
    """What a group was played for: `suite` is "train", an evaluation's, or empty; `version` is the learner's then."""

    suite: str = ""
    version: _Version = 0
    temperature: float = 1.0


@dataclass(frozen=True, slots=True, config=_CONFIG)
class TurnLine:
    """A turn. `prompt_prefix_length` ids of its prompt are those of the turn before with its completion. `pieces`:
    the text of each token of the completion, where the tokenizer was known."""

    prompt_prefix_length: int
    prompt_suffix_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    rollout_logprobs: tuple[float, ...]
    images: tuple[str, ...]
    policy_version: int
    text: str
    feedback: str
    reward: float
    finish: FinishReason
    parsed: bool
    pieces: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, config=_CONFIG)
class TrajectoryLine:
    """An episode. `advantage` is what the learner used; None where it did not learn from it."""

    member: int
    turns: tuple[TurnLine, ...]
    stop_reason: StopReason
    task_reward: float
    error: str
    metrics: dict[str, float]
    advantage: float | None = None


@dataclass(frozen=True, slots=True, config=_CONFIG)
class GroupLine:
    """A group. `images`: where each stands in the pack, by sha256."""

    group_id: str
    env: str
    seed: _Version
    policy_version: _Version
    label: Label
    trajectories: tuple[TrajectoryLine, ...]
    images: dict[str, Annotated[int, Field(ge=0)]]
    seconds: float
    time: float = 0.0  # seconds since 1970 when it was written


LINE = TypeAdapter(GroupLine)


@dataclass(frozen=True, slots=True)
class Beside:
    """What is known of groups beside themselves."""

    label: Label | None = None  # None: of no suite, at the group's own version
    advantages: Mapping[str, Mapping[int, float]] = field(default_factory=dict)  # by group id and member
    spell: Spell | None = None


def group_line(group: TrajectoryGroup, beside: Beside, images: dict[str, int], time: float) -> GroupLine:
    """The line of a group whose images stand at these places."""
    weights = beside.advantages.get(group.group_id, {})
    return GroupLine(
        group_id=group.group_id,
        env=group.env,
        seed=group.seed,
        policy_version=group.policy_version,
        label=beside.label or Label(version=group.policy_version),
        trajectories=tuple(_trajectory_line(t, weights.get(t.member), beside.spell) for t in group.trajectories),
        images=images,
        seconds=group.seconds,
        time=time,
    )


def dump_line(line: GroupLine) -> bytes:
    """As bytes, with the newline."""
    return LINE.dump_json(line) + b"\n"


def check_line(line: GroupLine, what: str) -> GroupLine:
    """The line, once what it names is in it.

    Raises:
        DataCorrupt: an image that is not the group's, an id that is none, or ids and logprobs that do not match.
    """
    for trajectory in line.trajectories:
        before = 0
        for index, turn in enumerate(trajectory.turns):
            where = f"{what}: member {trajectory.member} turn {index}"
            if missing := set(turn.images) - set(line.images):
                raise DataCorrupt(f"{where}: image {min(missing)} is not among the group's")
            if odd := [token for token in turn.prompt_suffix_ids + turn.completion_ids if not 0 <= token < 2**31]:
                raise DataCorrupt(f"{where}: {odd[0]} is no token id")
            ids, logprobs = len(turn.completion_ids), len(turn.rollout_logprobs)
            if ids != logprobs:
                raise DataCorrupt(f"{where}: {ids} completion ids but {logprobs} logprobs")
            if not 0 <= turn.prompt_prefix_length <= before:
                raise DataCorrupt(f"{where}: shares {turn.prompt_prefix_length} ids with a turn of {before}")
            before = turn.prompt_prefix_length + len(turn.prompt_suffix_ids) + ids
    return line


def group_of(line: GroupLine, images: Mapping[str, bytes]) -> TrajectoryGroup:
    """The group of a checked line again."""
    return TrajectoryGroup(
        group_id=line.group_id,
        env=line.env,
        seed=line.seed,
        policy_version=line.policy_version,
        trajectories=tuple(map(_trajectory, line.trajectories)),
        images=images,
        seconds=line.seconds,
    )


def _trajectory_line(trajectory: Trajectory, advantage: float | None, spell: Spell | None) -> TrajectoryLine:
    turns, before = list[TurnLine](), tuple[int, ...]()
    for turn in trajectory.turns:
        prefix = len(before) if turn.prompt_ids[: len(before)] == before else 0
        turns.append(_turn_line(turn, prefix, spell))
        before = turn.prompt_ids + turn.completion_ids
    return TrajectoryLine(
        member=trajectory.member,
        turns=tuple(turns),
        stop_reason=trajectory.stop_reason,
        task_reward=trajectory.task_reward,
        error=trajectory.error,
        metrics=dict(trajectory.metrics),
        advantage=advantage,
    )


def _turn_line(turn: Turn, prefix: int, spell: Spell | None) -> TurnLine:
    return TurnLine(
        prompt_prefix_length=prefix,
        prompt_suffix_ids=turn.prompt_ids[prefix:],
        completion_ids=turn.completion_ids,
        rollout_logprobs=turn.rollout_logprobs,
        images=turn.images,
        policy_version=turn.policy_version,
        text=turn.text,
        feedback=turn.feedback,
        reward=turn.reward,
        finish=turn.finish,
        parsed=turn.parsed,
        pieces=tuple(spell(turn.completion_ids)) if spell else (),
    )


def _trajectory(line: TrajectoryLine) -> Trajectory:
    turns, before = list[Turn](), tuple[int, ...]()
    for turn in line.turns:
        turns.append(_turn(turn, before))
        before = turns[-1].prompt_ids + turn.completion_ids
    return Trajectory(line.member, tuple(turns), line.stop_reason, line.task_reward, line.error, line.metrics)


def _turn(line: TurnLine, before: tuple[int, ...]) -> Turn:
    return Turn(
        prompt_ids=before[: line.prompt_prefix_length] + line.prompt_suffix_ids,
        completion_ids=line.completion_ids,
        rollout_logprobs=line.rollout_logprobs,
        images=line.images,
        policy_version=line.policy_version,
        text=line.text,
        feedback=line.feedback,
        reward=line.reward,
        finish=line.finish,
        parsed=line.parsed,
    )
