"""Advantages -> loss, token by token. How tokens are weighed against each other is `aggregation`'s.

A policy loss takes `Tokens` and `AlgoConfig` and gives the loss float [M] and, as bool [M], where a clip stops the
gradient. All but `sft` rest on the ratio to the policy that the step started from:

    r_t = exp(learner_logprob_t - anchor_logprob_t)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from tandem.config import AlgoConfig


@dataclass(frozen=True, slots=True)
class Tokens:
    """M sampled tokens of whole training sequences, any part of a batch.

    `learner_logprobs` carry the gradient. `anchor_logprobs` are the ratio's denominator: the rollout's, or the
    learner's own at the start of the step. `advantages` are the trajectories'. `sequence`: which of the call's
    training sequences, 0..R-1, each token belongs to.
    """

    learner_logprobs: Tensor  # float [M]
    anchor_logprobs: Tensor  # float [M]
    advantages: Tensor  # float [M]
    sequence: Tensor  # int64 [M]

    @property
    def log_ratio(self) -> Tensor:
        """float [M]."""
        return self.learner_logprobs - self.anchor_logprobs

    def sequence_sums(self, values: Tensor) -> Tensor:
        """Sums of values [M] over their sequences: float [R]."""
        size = int(self.sequence.max()) + 1 if self.sequence.numel() else 0
        return torch.zeros(size, dtype=values.dtype, device=values.device).index_add(0, self.sequence, values)


PolicyLoss = Callable[[Tokens, AlgoConfig], tuple[Tensor, Tensor]]


def ppo_clip(tokens: Tokens, algo: AlgoConfig) -> tuple[Tensor, Tensor]:
    """PPO's clipped surrogate (Schulman et al. 2017, arXiv:1707.06347).

        loss_t = -min(r A, clip(r, 1 - clip_low, 1 + clip_high) A)

    clip_high > clip_low is DAPO's clip-higher (Yu et al. 2025, arXiv:2503.14476). With dual_clip c > 1 the loss of
    a negative advantage grows no further than -c A (Ye et al. 2020, arXiv:1912.09729).
    """
    return _clipped(tokens.log_ratio.exp(), tokens.advantages, algo)


def gspo(tokens: Tokens, algo: AlgoConfig) -> tuple[Tensor, Tensor]:
    """GSPO (Zheng et al. 2025, arXiv:2507.18071): one ratio per sequence, the geometric mean of its tokens'.

        s = exp(mean over the sequence's tokens of log r)
        loss_t = -min(s A, clip(s, 1 - clip_low, 1 + clip_high) A)

    The sequence is a training sequence: the completions of all turns that extend each other. A whole transcript is
    one; with a window each window is its own. With the aggregation `seq_mean_token_mean` this is the paper's loss.
    The paper clips much closer than PPO, at 3e-4 and 4e-4.
    """
    counts = tokens.sequence_sums(torch.ones_like(tokens.advantages))
    mean = tokens.sequence_sums(tokens.log_ratio) / counts  # [R]
    return _clipped(mean.exp()[tokens.sequence], tokens.advantages, algo)


def cispo(tokens: Tokens, algo: AlgoConfig) -> tuple[Tensor, Tensor]:
    """CISPO (MiniMax 2025, arXiv:2506.13585): the ratio is a clipped weight, so no token loses its gradient.

    loss_t = -stop_gradient(clip(r, 1 - clip_low, 1 + clip_high)) A learner_logprob
    """
    weight = tokens.log_ratio.detach().exp().clamp(1 - algo.clip_low, 1 + algo.clip_high)
    return -weight * tokens.advantages * tokens.learner_logprobs, torch.zeros_like(tokens.sequence, dtype=torch.bool)


def sft(tokens: Tokens, algo: AlgoConfig) -> tuple[Tensor, Tensor]:
    """Supervised fine-tuning: negative log-likelihood of the completions, weighted by the advantage, which then is 1.

    loss_t = -A learner_logprob
    """
    return -tokens.advantages * tokens.learner_logprobs, torch.zeros_like(tokens.sequence, dtype=torch.bool)


POLICY_LOSSES: Mapping[str, PolicyLoss] = {"ppo_clip": ppo_clip, "gspo": gspo, "cispo": cispo, "sft": sft}


def _clipped(ratio: Tensor, advantages: Tensor, algo: AlgoConfig) -> tuple[Tensor, Tensor]:
    unclipped = -ratio * advantages
    bounded = -ratio.clamp(1 - algo.clip_low, 1 + algo.clip_high) * advantages
    loss = torch.maximum(unclipped, bounded)
    stopped = bounded > unclipped
    if algo.dual_clip:
        most = -algo.dual_clip * advantages  # positive where the advantage is negative
        over = (advantages < 0) & (loss > most)
        loss, stopped = torch.where(over, most, loss), stopped | over
    return loss, stopped
