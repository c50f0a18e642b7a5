"""Groups that must not make a step: each refusal in one line that says where."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tandem.types import FinishReason, StopReason, Trajectory, TrajectoryGroup, Turn, UserError
from tandem_learner.validate import Limits, check_groups

PNG = b"a picture"
NAME = hashlib.sha256(PNG).hexdigest()
PAD, BANNED, VOCAB = 90, 91, 100
LIMITS = Limits(2, 3, 40, VOCAB, frozenset({PAD, BANNED}), PAD, len)  # an image takes as many tokens as it has bytes


def _turn(**changes: Any) -> Turn:
    turn = Turn(
        prompt_ids=(1, *[PAD] * len(PNG), 2),
        completion_ids=(5, 6),
        rollout_logprobs=(-0.5, -0.25),
        images=(NAME,),
        policy_version=3,
        text="",
        feedback="",
        reward=1.0,
        finish=FinishReason.STOP,
    )
    return replace(turn, **changes)


def _group(*turns: Turn, **changes: Any) -> TrajectoryGroup:
    """A group of two; the given turns are the second member's."""
    members = (Trajectory(0, (_turn(),), StopReason.TERMINATED, 1.0), Trajectory(1, turns, StopReason.TERMINATED, 0.0))
    return replace(TrajectoryGroup("g7", "maze2d:tiny", 7, 3, members, {NAME: PNG}), **changes)


def test_good_groups_pass() -> None:
    check_groups([_group(_turn(), _turn(prompt_ids=(1,), images=())), _group(group_id="other")], LIMITS)


def _second(change: Callable[[Trajectory], Trajectory]) -> TrajectoryGroup:
    group = _group(_turn())
    return replace(group, trajectories=(group.trajectories[0], change(group.trajectories[1])))


@pytest.mark.parametrize(
    ("group", "said"),
    [
        (_group(_turn(reward=math.nan)), "group g7 member 1 turn 0: reward nan is not within"),
        (_group(_turn(), _turn(reward=math.inf), _turn(reward=-math.inf)), "group g7 member 1 turn 1: reward inf"),
        (_group(_turn(), _turn(reward=1e300), _turn(reward=-1e300)), "group g7 member 1 turn 1: reward 1e.300 is not"),
        (_group(*[_turn(reward=-9e17)] * 2), "group g7 member 1: return -1.8e.18 is not within"),
        (_second(lambda t: replace(t, task_reward=math.nan)), "group g7 member 1: task reward nan is not within"),
        (_group(_turn(), _turn(rollout_logprobs=(-0.5,))), "group g7 member 1 turn 1: 2 completion ids but 1 logprobs"),
        (_group(_turn(rollout_logprobs=(-0.5, math.nan))), "turn 0: a rollout logprob is nan"),
        (_group(_turn(rollout_logprobs=(-0.5, -math.inf))), "turn 0: a rollout logprob is -inf"),
        (_group(_turn(rollout_logprobs=(5.0, -0.5))), r"turn 0: a rollout logprob is 5\.0; what was sampled"),
        (_group(_turn(rollout_logprobs=(-1e30, -0.5))), r"turn 0: a rollout logprob is -1e\+30"),
        (_group(_turn(), _turn(prompt_ids=(), images=())), "turn 1: empty prompt"),
        (
            _group(_turn(), _turn(prompt_ids=(1, *[PAD] * 39), images=())),  # an image larger than the context
            "turn 1: 42 tokens, 39 of them of images, where rollout.engine.max_model_len is 40",
        ),
        (_group(_turn(completion_ids=(5, VOCAB))), "turn 0: a token id lies beyond"),
        (_group(_turn(completion_ids=(5, BANNED))), f"turn 0: the completion holds token {BANNED}"),
        (_group(_turn(), _turn(images=("absent",))), "turn 1: image absent is not in the group"),
        (
            _group(_turn(), _turn(images=(NAME, NAME))),
            "turn 1: 9 image placeholders in the prompt, but its images take 18",
        ),
        (_group(_turn(), _turn(images=())), "turn 1: 9 image placeholders in the prompt, but its images take 0"),
        (_group(_turn(policy_version=4)), "turn 0: policy version 4 is newer than the learner's 3"),
        (_group(_turn(prompt_ids=(2, *[PAD] * 9, 2))), "group g7: members start from 2 different observations"),
        (_second(lambda t: replace(t, member=0)), r"group g7: members are \[0, 0\]"),
        (_group(images={NAME: b"not it 9b"}), "group g7: image .* is not what its sha256 says"),
        (replace(_group(), trajectories=()), "group g7: 0 trajectories where rollout.group_size is 2"),
    ],
)
def test_what_cannot_be_learned_from_is_refused(group: TrajectoryGroup, said: str) -> None:
    with pytest.raises(UserError, match=said) as refused:
        check_groups([_group(_turn(), group_id="good"), group], LIMITS)
    assert "\n" not in str(refused.value)


def test_no_groups_and_a_group_twice_are_refused() -> None:
    with pytest.raises(UserError, match="no groups"):
        check_groups([], LIMITS)
    with pytest.raises(UserError, match="group g7: sent twice"):
        check_groups([_group(), _group()], LIMITS)


def test_nothing_to_learn_from_is_no_mistake() -> None:
    """A turn without a completion, and an episode that ended before its first turn."""
    check_groups([_group(_turn(completion_ids=(), rollout_logprobs=()))], LIMITS)
    check_groups([_group()], LIMITS)


def test_recorded_trajectories_may_be_any_number_from_any_policy() -> None:
    recorded = _group(_turn(policy_version=99))
    alone = replace(recorded, group_id="alone", trajectories=recorded.trajectories[:1])
    check_groups([recorded, alone], replace(LIMITS, group_size=None, version=None))
    with pytest.raises(UserError, match=r"0 trajectories where rollout\.group_size is at least 1"):
        check_groups([replace(recorded, trajectories=())], replace(LIMITS, group_size=None, version=None))
