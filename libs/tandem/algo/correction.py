"""Engine and learner give one policy slightly different probabilities: importance weights that correct for it.

    rho = exp(start_logprob - rollout_logprob)        start: the learner's, before the step moved anything

at level `token` for each token, at level `sequence` the product over the tokens of its training sequence. Weights are
constants of the step: no gradient runs through them, and tokens with weight 0 still count in the loss's denominator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from tandem.algo.losses import Tokens
from tandem.config import CorrectionConfig

Rule = Callable[[Tensor, CorrectionConfig], Tensor]


def importance_weights(
    tokens: Tokens, start_logprobs: Tensor, rollout_logprobs: Tensor, config: CorrectionConfig
) -> Tensor:
    """The weight of each token's loss, detached: float [M] of [M] logprobs."""
    log_rho = (start_logprobs - rollout_logprobs).detach()
    if config.level == "sequence":
        log_rho = tokens.sequence_sums(log_rho)[tokens.sequence]
    return CORRECTIONS[config.kind](log_rho.exp(), config)


def none(rho: Tensor, config: CorrectionConfig) -> Tensor:
    """All ones: no correction."""
    return torch.ones_like(rho)


def truncate(rho: Tensor, config: CorrectionConfig) -> Tensor:
    """min(rho, high): truncated importance sampling (Ionides 2008; Yao et al. 2025, https://fengyao.notion.site/off-policy-rl)."""
    return rho.clamp(max=config.high)


def mask(rho: Tensor, config: CorrectionConfig) -> Tensor:
    """rho within [low, high], else 0: what they disagree on is left out (IcePop, Ling Team 2025, arXiv:2510.18855)."""
    return torch.where((rho >= config.low) & (rho <= config.high), rho, 0.0)


CORRECTIONS: Mapping[str, Rule] = {"none": none, "truncate": truncate, "mask": mask}
