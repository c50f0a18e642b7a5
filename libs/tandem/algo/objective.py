"""The objective of an update, assembled: every term is per token, one set of weights sums them all up.

    loss = sum over tokens of weight * (correction * policy_loss + kl.coef * kl - entropy_coef * entropy)
                    aggregation       correction   losses                   kl

`weight` is 0 for nobody here: what is masked has been left out before (`filtering`).
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from tandem.algo.correction import importance_weights
from tandem.algo.kl import KL_ESTIMATORS, k3
from tandem.algo.losses import POLICY_LOSSES, Tokens
from tandem.config import AlgoConfig


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of M sampled tokens beside `Tokens`; logprobs as the learner computed them, unless named otherwise.

    `weights` as the aggregation gives them. `start_logprobs`: before the step moved anything. `ref_logprobs`: of the
    base model, None where no term asks for them. `entropy` carries a gradient where the bonus asks for one.
    """

    weights: Tensor  # float [M]
    rollout_logprobs: Tensor  # float [M]
    start_logprobs: Tensor  # float [M]
    ref_logprobs: Tensor | None  # float [M]
    entropy: Tensor  # float [M], nats


def figure_names(algo: AlgoConfig) -> tuple[str, ...]:
    """The figures that `objective` gives for these settings."""
    return (
        "entropy",
        *(() if algo.supervised else ("approx_kl", "clip_share", "logprob_gap")),
        *(("correction_weight",) if algo.correction.kind != "none" else ()),
        *(("ref_kl",) if algo.kl.coef else ()),
    )


def objective(tokens: Tokens, evidence: Evidence, algo: AlgoConfig) -> tuple[Tensor, dict[str, Tensor]]:
    """The part of the loss that these tokens make, and figures of each token.

    Returns:
        float [] to be summed over all parts of the batch; and detached [M] by `figure_names`, to be averaged over
        tokens: `approx_kl` (k3 of KL(anchor || learner)), `clip_share` (1.0 where a clip stops the gradient),
        `logprob_gap` (learner and rollout, absolute), `correction_weight`, `ref_kl` (by `kl.estimator`), `entropy`.
    """
    policy_loss, clipped = POLICY_LOSSES[algo.loss](tokens, algo)
    correction = importance_weights(tokens, evidence.start_logprobs, evidence.rollout_logprobs, algo.correction)
    loss = correction * policy_loss
    figures = {
        "clip_share": clipped.float(),
        "approx_kl": k3(-tokens.log_ratio),
        "logprob_gap": (tokens.learner_logprobs - evidence.rollout_logprobs).abs(),
        "correction_weight": correction,
        "entropy": evidence.entropy,
    }
    if evidence.ref_logprobs is not None:
        figures["ref_kl"] = KL_ESTIMATORS[algo.kl.estimator](tokens.learner_logprobs - evidence.ref_logprobs)
        if algo.kl.place == "loss":
            loss = loss + algo.kl.coef * figures["ref_kl"]
    if algo.entropy_coef:
        loss = loss - algo.entropy_coef * evidence.entropy
    return (evidence.weights * loss).sum(), {name: figures[name].detach() for name in figure_names(algo)}
