"""Returns -> advantages. Each estimator compares the trajectories of one group, which share their start.

An estimator takes returns float64 [G, S] (one row per group) and valid bool [G, S], and gives float64 [G, S];
entries that are not valid are 0 in what it takes, and what it gives there is not looked at. `group_advantages`
sees to what holds for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

EPS = 1e-6  # beside a standard deviation, outside its root

Estimator = Callable[[Tensor, Tensor], Tensor]


def group_advantages(name: str, returns: Tensor, valid: Tensor) -> tuple[Tensor, dict[str, float]]:
    """The advantages of a batch of groups by the estimator `name`, a key of `ADVANTAGES`.

    A group whose valid returns are all equal, and a group of one, give exactly 0: rounding makes up no advantage. One
    with a valid return that float32 cannot hold gives NaN: its update is then skipped, not made without a gradient.

    Args:
        returns: float [G, S], one row per group. Only entries where `valid` is True are looked at.
        valid: bool [G, S]; False leaves a member out of its group's statistics and gives it 0.
    Returns:
        float32 [G, S], and the metrics `advantage_std`, `advantage_max` and `advantage_min` over valid members.
    """
    if returns.numel() == 0:
        return returns.float(), _describe(returns.float())
    values = torch.where(valid, returns.double(), 0.0)  # double: a mean of equal numbers should be that number
    found = ADVANTAGES[name](values, valid)
    found = torch.where(_varied(values, valid), found, 0.0)
    found = torch.where(values.float().isfinite().all(dim=1, keepdim=True), found, torch.nan)
    advantages = torch.where(valid, found, 0.0).float()
    return advantages, _describe(advantages[valid])


def grpo(returns: Tensor, valid: Tensor) -> Tensor:
    """GRPO (Shao et al. 2024, DeepSeekMath, arXiv:2402.03300): centred in the group, over its standard deviation.

    A_i = (R_i - mean(R)) / (std(R) + 1e-6)        std with ddof = 1
    """
    centred, _ = _centre(returns, valid)
    std = (centred.square().sum(dim=1, keepdim=True) / (_count(valid) - 1).clamp(min=1)).sqrt()
    return centred / (std + EPS)


def dr_grpo(returns: Tensor, valid: Tensor) -> Tensor:
    """Dr. GRPO (Liu et al. 2025, arXiv:2503.20783): centred only, so that groups nearly all alike weigh no more.

    A_i = R_i - mean(R)

    The paper goes with the loss aggregation `seq_mean_token_sum_norm`.
    """
    return _centre(returns, valid)[0]


def rloo(returns: Tensor, valid: Tensor) -> Tensor:
    """RLOO (Ahmadian et al. 2024, arXiv:2402.14740): the baseline is the mean of the others, so it is unbiased.

    A_i = R_i - mean(R without R_i) = n / (n - 1) (R_i - mean(R))
    """
    count = _count(valid)
    return _centre(returns, valid)[0] * count / (count - 1).clamp(min=1)


def reinforce_pp(returns: Tensor, valid: Tensor) -> Tensor:
    """REINFORCE++ with a group baseline (Hu et al. 2025, arXiv:2501.03262): one scale for the whole batch.

    A_i = (R_i - mean(R)) / (std over all groups of (R - mean(R)) + 1e-6)        std with ddof = 1

    Centred groups already have the batch mean 0. The batch is the step's groups that are learned from.
    """
    centred, _ = _centre(returns, valid)
    std = (centred.square().sum() / (valid.sum() - 1).clamp(min=1)).sqrt()
    return centred / (std + EPS)


def maxrl(returns: Tensor, valid: Tensor) -> Tensor:
    """MaxRL (Tajwar et al. 2026, arXiv:2602.02710): over the group's mean, the pass rate where returns are 0 and 1.

    A_i = (R_i - mean(R)) / mean(R)

    Its expectation is the gradient of the log-likelihood of success, truncated at the group's size. Made for returns
    that are not negative; a group whose mean is 0 or less gives 0.
    """
    centred, mean = _centre(returns, valid)
    return torch.where(mean > 0, centred / torch.where(mean > 0, mean, 1.0), 0.0)


ADVANTAGES: Mapping[str, Estimator] = {
    "grpo": grpo,
    "dr_grpo": dr_grpo,
    "rloo": rloo,
    "reinforce_pp": reinforce_pp,
    "maxrl": maxrl,
}


def _count(valid: Tensor) -> Tensor:
    return valid.sum(dim=1, keepdim=True)  # [G, 1]


def _centre(returns: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """Returns minus their group's mean, 0 where not valid, and that mean [G, 1]."""
    mean = returns.sum(dim=1, keepdim=True) / _count(valid).clamp(min=1)
    return torch.where(valid, returns - mean, 0.0), mean


def _varied(values: Tensor, valid: Tensor) -> Tensor:
    """bool [G, 1]: are two valid returns different?"""
    highest = torch.where(valid, values, -torch.inf).amax(dim=1, keepdim=True)
    lowest = torch.where(valid, values, torch.inf).amin(dim=1, keepdim=True)
    return highest > lowest


def _describe(advantages: Tensor) -> dict[str, float]:
    if advantages.numel() == 0:
        return {"advantage_std": 0.0, "advantage_max": 0.0, "advantage_min": 0.0}
    return {
        "advantage_std": advantages.std(correction=0).item(),
        "advantage_max": advantages.max().item(),
        "advantage_min": advantages.min().item(),
    }
