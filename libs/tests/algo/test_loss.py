"""The clipped policy loss, token by token."""

import math

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import tensor
from torch.testing import assert_close

from tandem.algo import clipped_policy_loss

CLIP = {"clip_low": 0.2, "clip_high": 0.2}


def test_four_corners_by_hand() -> None:
    # ratios 0.6 / 0.4 = 1.5, 1.5, 0.2 / 0.4 = 0.5, 0.5; clip to [0.8, 1.2]
    learner = tensor([0.6, 0.6, 0.2, 0.2]).log()
    rollout = tensor([0.4, 0.4, 0.4, 0.4]).log()
    advantages = tensor([1.0, -1.0, 1.0, -1.0])
    loss, metrics = clipped_policy_loss(learner, rollout, advantages, **CLIP)
    # A = 1:  -min(1.5, 1.2) = -1.2, clipped;   -min(0.5, 0.8) = -0.5
    # A = -1: -min(-1.5, -1.2) = 1.5;           -min(-0.5, -0.8) = 0.8, clipped
    assert_close(loss, tensor([-1.2, 1.5, -0.5, 0.8]))
    assert metrics["clip_share"].tolist() == [1.0, 0.0, 0.0, 1.0]
    # k3: 1.5 - 1 - ln 1.5 = 0.0945349; 0.5 - 1 - ln 0.5 = 0.1931472
    assert_close(metrics["approx_kl"], tensor([0.0945349, 0.0945349, 0.1931472, 0.1931472]))
    assert_close(metrics["logprob_gap"], tensor([0.4054651, 0.4054651, 0.6931472, 0.6931472]))


def test_clip_higher_is_its_own_bound() -> None:
    learner, rollout, advantages = tensor([0.6]).log(), tensor([0.4]).log(), tensor([1.0])
    loss, metrics = clipped_policy_loss(learner, rollout, advantages, clip_low=0.2, clip_high=0.6)
    assert_close(loss, tensor([-1.5]))  # 1.5 < 1.6
    assert metrics["clip_share"].tolist() == [0.0]


def test_gradient_is_minus_ratio_times_advantage_and_zero_where_clipped() -> None:
    learner = tensor([math.log(0.6), math.log(0.44), math.log(0.2)], requires_grad=True)
    rollout = tensor([0.4, 0.4, 0.4]).log()
    loss, _ = clipped_policy_loss(learner, rollout, tensor([1.0, 2.0, 0.0]), **CLIP)
    loss.sum().backward()
    assert learner.grad is not None
    # ratio 1.5 with A = 1 is clipped; ratio 1.1 with A = 2: -2.2; no advantage, no gradient
    assert_close(learner.grad, tensor([0.0, -2.2, 0.0]))


LOGPROBS = st.lists(st.floats(-20, 0), min_size=1, max_size=20)


@given(LOGPROBS, st.floats(-5, 5))
def test_on_policy_ratio_is_exactly_one(logprobs: list[float], advantage: float) -> None:
    same = tensor(logprobs)
    loss, metrics = clipped_policy_loss(same, same, torch.full_like(same, advantage), **CLIP)
    assert loss.tolist() == (-torch.full_like(same, advantage)).tolist()
    assert metrics["approx_kl"].sum() == 0
    assert metrics["clip_share"].sum() == 0


@given(LOGPROBS, LOGPROBS)
def test_kl_estimate_is_never_negative(learner: list[float], rollout: list[float]) -> None:
    size = min(len(learner), len(rollout))
    pair = tensor(learner[:size], dtype=torch.float64), tensor(rollout[:size], dtype=torch.float64)
    metrics = clipped_policy_loss(*pair, torch.ones(size), **CLIP)[1]
    assert float(metrics["approx_kl"].min()) >= -1e-12
