"""Policy losses per token. The caller divides by the tokens of the whole global batch and sums."""

from __future__ import annotations

import torch
from torch import Tensor


def clipped_policy_loss(
    learner_logprobs: Tensor,
    rollout_logprobs: Tensor,
    advantages: Tensor,
    *,
    clip_low: float,
    clip_high: float,
) -> tuple[Tensor, dict[str, Tensor]]:
    """PPO's clipped surrogate, token by token.

        r = exp(learner_logprob - rollout_logprob)
        loss = -min(r A, clip(r, 1 - clip_low, 1 + clip_high) A)

    (Schulman et al. 2017, arXiv:1707.06347; clip_high > clip_low is DAPO's clip-higher, Yu et al. 2025,
    arXiv:2503.14476.) The token mean over the whole global batch is `loss.sum() / tokens`, whatever part of
    the batch this call saw.

    Args:
        learner_logprobs, rollout_logprobs, advantages: float [M], one entry per sampled token.
    Returns:
        float [M], and detached [M] tensors to be averaged over tokens: `approx_kl` (Schulman's k3 estimate of
        KL(rollout || learner), http://joschu.net/blog/kl-approx.html), `clip_share` (1.0 where the clip
        stops the gradient), `logprob_gap` (absolute difference of the two logprobs).
    """
    log_ratio = learner_logprobs - rollout_logprobs
    ratio = log_ratio.exp()
    unclipped = ratio * advantages
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high) * advantages
    loss = -torch.minimum(unclipped, clipped)
    with torch.no_grad():
        metrics = {
            "approx_kl": ratio - 1 - log_ratio,
            "clip_share": (clipped < unclipped).float(),
            "logprob_gap": log_ratio.abs(),
        }
    return loss, {name: value.detach() for name, value in metrics.items()}
