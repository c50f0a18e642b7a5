"""The price of leaving the base model: estimates of KL(policy || base) from sampled tokens.

With d = logprob - ref_logprob of a token that the policy sampled (Schulman 2020, http://joschu.net/blog/kl-approx.html),
and what each is good for (Liu et al. 2025, arXiv:2510.01555):

    estimator  value                         in the reward (no gradient)   in the loss: its gradient, on policy
    k1         d, unbiased, of either sign   the usual choice              zero in expectation: noise, refused
    k2         d^2 / 2, biased, >= 0         biased                        that of KL(policy || base), unbiased
    k3         e^-d - 1 + d, unbiased, >= 0  unbiased, steadier than k1    that of KL(base || policy): another direction

In the loss nothing corrects for tokens that an older policy sampled. In the reward the estimate is summed over the
trajectory's tokens and taken off its return before advantages are made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

KlEstimator = Callable[[Tensor], Tensor]


def k1(difference: Tensor) -> Tensor:
    """d."""
    return difference


def k2(difference: Tensor) -> Tensor:
    """d^2 / 2."""
    return difference.square() / 2


def k3(difference: Tensor) -> Tensor:
    """e^-d - 1 + d, exactly 0 at d = 0."""
    return (-difference).expm1() + difference


KL_ESTIMATORS: Mapping[str, KlEstimator] = {"k1": k1, "k2": k2, "k3": k3}
