"""Policy losses, token by token: numbers worked out by hand, and what must hold for all of them."""

import math
from typing import Any, get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import tensor
from torch.testing import assert_close

from tandem.algo import POLICY_LOSSES, Tokens
from tandem.config import AlgoConfig

all_losses = pytest.mark.parametrize("name", POLICY_LOSSES)


def _loss(name: str, tokens: Tokens, **settings: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return POLICY_LOSSES[name](tokens, AlgoConfig(**settings))


def _tokens(
    learner: list[float], anchor: list[float], advantages: list[float], sequence: list[int] | None = None
) -> Tokens:
    """Of probabilities."""
    each_alone = list(range(len(learner)))
    logprobs = tensor(learner).log().requires_grad_()
    return Tokens(logprobs, tensor(anchor).log(), tensor(advantages), tensor(sequence or each_alone))


def _gradient(name: str, tokens: Tokens, **settings: Any) -> torch.Tensor:
    [gradient] = torch.autograd.grad(_loss(name, tokens, **settings)[0].sum(), tokens.learner_logprobs)
    return gradient


def test_config_knows_the_same_names() -> None:
    assert set(get_args(AlgoConfig.model_fields["loss"].annotation)) == set(POLICY_LOSSES)


def test_ppo_clip_four_corners() -> None:
    # ratios 0.6 / 0.4 = 1.5, 1.5, 0.2 / 0.4 = 0.5, 0.5; clip to [0.8, 1.2]
    # A = 1:  -min(1.5, 1.2) = -1.2, clipped;   -min(0.5, 0.8) = -0.5
    # A = -1: -min(-1.5, -1.2) = 1.5;           -min(-0.5, -0.8) = 0.8, clipped
    loss, stopped = _loss("ppo_clip", _tokens([0.6, 0.6, 0.2, 0.2], [0.4] * 4, [1.0, -1.0, 1.0, -1.0]))
    assert_close(loss.detach(), tensor([-1.2, 1.5, -0.5, 0.8]))
    assert stopped.tolist() == [True, False, False, True]


def test_ppo_clip_higher_is_its_own_bound() -> None:
    loss, stopped = _loss("ppo_clip", _tokens([0.6], [0.4], [1.0]), clip_low=0.2, clip_high=0.6)
    assert_close(loss.detach(), tensor([-1.5]))  # 1.5 < 1.6
    assert stopped.tolist() == [False]


def test_ppo_dual_clip_bounds_the_loss_of_a_negative_advantage() -> None:
    # ratio 0.8 / 0.2 = 4: with A = -1 the loss 4 is bounded by 3; with A = 1 clip-low's bound -1.2 as before
    # ratio 0.5 / 0.2 = 2.5: 2.5 is below the bound
    tokens = _tokens([0.8, 0.8, 0.5], [0.2] * 3, [-1.0, 1.0, -1.0])
    loss, stopped = _loss("ppo_clip", tokens, dual_clip=3.0)
    assert_close(loss.detach(), tensor([3.0, -1.2, 2.5]))
    assert stopped.tolist() == [True, True, False]
    assert_close(_gradient("ppo_clip", tokens, dual_clip=3.0), tensor([0.0, 0.0, 2.5]))


def test_ppo_gradient_is_minus_ratio_times_advantage_and_zero_where_clipped() -> None:
    # ratio 1.5 with A = 1 is clipped; ratio 1.1 with A = 2: -2.2; no advantage, no gradient
    assert_close(_gradient("ppo_clip", _tokens([0.6, 0.44, 0.2], [0.4] * 3, [1.0, 2.0, 0.0])), tensor([0.0, -2.2, 0.0]))


def test_gspo_has_one_ratio_a_sequence() -> None:
    # sequence 0: ratios 1.6 and 0.9, geometric mean sqrt(1.44) = 1.2; sequence 1: ratio 0.5
    # clip to [0.7, 1.1]. A = 1: -min(1.2, 1.1) = -1.1 for both tokens, clipped; A = -1: -min(-0.5, -0.7) = 0.7, clipped
    tokens = _tokens([0.8, 0.45, 0.25], [0.5, 0.5, 0.5], [1.0, 1.0, -1.0], [0, 0, 1])
    loss, stopped = _loss("gspo", tokens, clip_low=0.3, clip_high=0.1)
    assert_close(loss.detach(), tensor([-1.1, -1.1, 0.7]))
    assert stopped.tolist() == [True, True, True]


def test_gspo_gradient_is_shared_by_the_sequence() -> None:
    # loss of both tokens -1.2: together -2 s A; ds / dlogprob = s / 2 for each: gradient -1.2 each
    tokens = _tokens([0.8, 0.45], [0.5, 0.5], [1.0, 1.0], [0, 0])
    assert_close(_gradient("gspo", tokens, clip_high=0.3), tensor([-1.2, -1.2]))


def test_cispo_keeps_the_gradient_of_what_it_clips() -> None:
    # weights: 1.5 cut to 1.2; 0.5 raised to 0.8. Gradient: minus weight times advantage
    tokens = _tokens([0.6, 0.2], [0.4, 0.4], [1.0, -2.0])
    loss, stopped = _loss("cispo", tokens)
    assert_close(loss.detach(), tensor([-1.2 * math.log(0.6), 1.6 * math.log(0.2)]))
    assert not stopped.any()
    assert_close(_gradient("cispo", tokens), tensor([-1.2, 1.6]))


def test_sft_is_the_negative_log_likelihood_whatever_the_rollout_thought() -> None:
    tokens = _tokens([0.5, 0.25], [0.9, 1e-9], [1.0, 1.0])
    assert_close(_loss("sft", tokens)[0].detach(), tensor([math.log(2), math.log(4)]))
    assert_close(_gradient("sft", tokens), tensor([-1.0, -1.0]))


LOGPROBS = st.lists(st.floats(-20, 0), min_size=1, max_size=20)


@pytest.mark.parametrize("name", ["ppo_clip", "gspo"])
@given(logprobs=LOGPROBS, advantage=st.floats(-5, 5), dual_clip=st.sampled_from([0.0, 3.0]))
def test_on_policy_ratio_is_exactly_one(name: str, logprobs: list[float], advantage: float, dual_clip: float) -> None:
    same = tensor(logprobs)
    tokens = Tokens(same, same, torch.full_like(same, advantage), torch.zeros(len(same), dtype=torch.int64))
    loss, stopped = _loss(name, tokens, dual_clip=dual_clip)
    assert loss.tolist() == (-tokens.advantages).tolist()
    assert not stopped.any()


@pytest.mark.parametrize("name", POLICY_LOSSES)
@given(logprobs=LOGPROBS, advantage=st.floats(0.1, 5), sign=st.sampled_from([-1, 1]))
def test_on_policy_gradient_is_minus_the_advantage(
    name: str, logprobs: list[float], advantage: float, sign: int
) -> None:
    same = tensor(logprobs, requires_grad=True)
    advantages = torch.full_like(same, sign * advantage)
    tokens = Tokens(same, same.detach(), advantages, torch.zeros(len(same), dtype=torch.int64))
    assert_close(_gradient(name, tokens), -advantages)


@pytest.mark.parametrize("name", POLICY_LOSSES)
@given(pairs=st.lists(st.tuples(st.floats(-20, 0), st.floats(-20, 0)), min_size=1, max_size=20))
def test_no_advantage_no_gradient(name: str, pairs: list[tuple[float, float]]) -> None:
    learner, anchor = (tensor(side) for side in zip(*pairs, strict=True))
    sequence = torch.arange(len(pairs)) // 2
    tokens = Tokens(learner.requires_grad_(), anchor, torch.zeros(len(pairs)), sequence)
    assert not _gradient(name, tokens).any()


@all_losses
def test_sequences_do_not_see_each_other(name: str) -> None:
    whole = _tokens([0.8, 0.45, 0.25, 0.3], [0.5] * 4, [1.0, 1.0, -1.0, -1.0], [0, 0, 1, 1])
    halves = [
        _tokens([0.8, 0.45], [0.5] * 2, [1.0, 1.0], [0, 0]),
        _tokens([0.25, 0.3], [0.5] * 2, [-1.0, -1.0], [0, 0]),
    ]
    assert_close(_loss(name, whole)[0], torch.cat([_loss(name, half)[0] for half in halves]))
