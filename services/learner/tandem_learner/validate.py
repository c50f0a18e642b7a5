"""What a step must not be made of. Refusals name the group, and member and turn if there are some."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass

from tandem.types import Trajectory, TrajectoryGroup, Turn, UserError

LARGEST_REWARD = 1e18  # its square still fits float32: what is far larger would end as infinite or, over a spread, as 0
LEAST_LOGPROB, MOST_LOGPROB = -1e4, 1e-3  # nats; rounding may carry one a little above 0


@dataclass(frozen=True, slots=True)
class Limits:
    """What groups are held against.

    `group_size` and `version` (the learner's: no turn may come from a later one) are None where trajectories are
    recorded ones to be imitated: any number of them, from any policy. `context` is the longest transcript, in tokens.
    `forbidden` are ids that are never sampled. `image_tokens` says how many placeholders (`image_id`) the image in
    some PNG bytes takes.
    """

    group_size: int | None
    version: int | None
    context: int
    vocab_size: int
    forbidden: Set[int]
    image_id: int
    image_tokens: Callable[[bytes], int]


def check_groups(groups: Sequence[TrajectoryGroup], limits: Limits) -> None:
    """Refuse groups that cannot be learned from.

    Raises:
        UserError: no groups, a group twice, a group of another size or whose members start differently
            (mixed seeds), a reward or return beyond `LARGEST_REWARD`, a logprob that no sample has, counts or
            ids that do not fit, a turn longer than the context (an image may be), an image that is not its sha256.
            Members say nothing of their seed: mixed ones are found where their first prompts or images differ.

    A turn without a completion token is none of these: there is nothing to learn from it, and `pack` leaves it out.
    So is an episode without a turn, as one ends whose first image does not fit the engine.
    """
    if not groups:
        raise UserError("train step: no groups; send at least one")
    seen: set[str] = set()
    for group in groups:
        where = f"group {group.group_id}"
        if group.group_id in seen:
            raise UserError(f"{where}: sent twice in one step; group ids are unique")
        seen.add(group.group_id)
        _check_members(group, limits.group_size, where)
        sizes: dict[str, int] = {}
        for name, png in group.images.items():
            try:
                sizes[name] = limits.image_tokens(png)
            except UserError as problem:
                raise UserError(f"{where}: image {name[:12]}: {problem}") from problem
            if hashlib.sha256(png).hexdigest() != name:
                raise UserError(f"{where}: image {name[:12]} is not what its sha256 says; send the bytes as rendered")
        for trajectory in group.trajectories:
            _check_trajectory(trajectory, sizes, limits, f"{where} member {trajectory.member}")


def _check_members(group: TrajectoryGroup, group_size: int | None, where: str) -> None:
    count = len(group.trajectories)
    if not count or count != (group_size or count):
        raise UserError(
            f"{where}: {count} trajectories where rollout.group_size is {group_size or 'at least 1'}; "
            "play with the same recipe"
        )
    if sorted(t.member for t in group.trajectories) != list(range(count)):
        raise UserError(f"{where}: members are {[t.member for t in group.trajectories]}; they must be 0 to {count - 1}")
    starts = {(t.turns[0].prompt_ids, t.turns[0].images) for t in group.trajectories if t.turns}
    if len(starts) > 1:
        raise UserError(
            f"{where}: members start from {len(starts)} different observations; all must share seed {group.seed}"
        )


def _check_trajectory(trajectory: Trajectory, sizes: Mapping[str, int], limits: Limits, where: str) -> None:
    for index, turn in enumerate(trajectory.turns):
        _check_turn(turn, sizes, limits, f"{where} turn {index}")
    _check_reward(trajectory.task_reward, f"{where}: task reward")
    _check_reward(trajectory.total_return, f"{where}: return")


def _check_reward(value: float, what: str) -> None:
    if not abs(value) <= LARGEST_REWARD:  # so that NaN is refused, too
        raise UserError(f"{what} {value} is not within {LARGEST_REWARD:.0e} of 0; rewards are of the order of 1")


def _check_turn(turn: Turn, sizes: Mapping[str, int], limits: Limits, where: str) -> None:
    _check_reward(turn.reward, f"{where}: reward")
    if len(turn.rollout_logprobs) != len(turn.completion_ids):
        raise UserError(f"{where}: {len(turn.completion_ids)} completion ids but {len(turn.rollout_logprobs)} logprobs")
    if odd := [value for value in turn.rollout_logprobs if not LEAST_LOGPROB <= value <= MOST_LOGPROB]:
        raise UserError(f"{where}: a rollout logprob is {odd[0]}; what was sampled has one of {LEAST_LOGPROB:g} to 0")
    if not turn.prompt_ids:
        raise UserError(f"{where}: empty prompt")
    if (length := len(turn.prompt_ids) + len(turn.completion_ids)) > limits.context:
        raise UserError(
            f"{where}: {length} tokens, {turn.prompt_ids.count(limits.image_id)} of them of images, where "
            f"rollout.engine.max_model_len is {limits.context}; play with the same recipe"
        )
    if max(*turn.prompt_ids, *turn.completion_ids, 0) >= limits.vocab_size:
        raise UserError(
            f"{where}: a token id lies beyond the model's {limits.vocab_size}; rollout and learner need the same model"
        )
    if banned := limits.forbidden & set(turn.completion_ids):
        raise UserError(f"{where}: the completion holds token {min(banned)}, which can never be sampled")
    if missing := [name for name in turn.images if name not in sizes]:
        raise UserError(f"{where}: image {missing[0][:12]} is not in the group")
    placeholders, wanted = turn.prompt_ids.count(limits.image_id), sum(sizes[name] for name in turn.images)
    if placeholders != wanted:
        raise UserError(f"{where}: {placeholders} image placeholders in the prompt, but its images take {wanted}")
    if limits.version is not None and turn.policy_version > limits.version:
        raise UserError(f"{where}: policy version {turn.policy_version} is newer than the learner's {limits.version}")
