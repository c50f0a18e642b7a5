"""Group-relative advantages."""

from __future__ import annotations

import torch
from torch import Tensor

EPS = 1e-6  # beside the standard deviation, outside its root


def group_advantages(returns: Tensor, valid: Tensor, *, normalize_std: bool = True) -> tuple[Tensor, dict[str, float]]:
    """GRPO's advantages: the return centred in its group, over the group's standard deviation.

        A_i = (R_i - mean(R)) / (std(R) + 1e-6)        std with ddof = 1

    (Shao et al. 2024, DeepSeekMath, arXiv:2402.03300; without the division: Liu et al. 2025, Dr. GRPO,
    arXiv:2503.20783.) A group whose returns are all equal, and a group of one, give exactly 0.

    Args:
        returns: float [G, S], one row per group. Only entries where `valid` is True are looked at.
        valid: bool [G, S]; False leaves a member out of its group's statistics and gives it 0.
        normalize_std: False only centres.
    Returns:
        float32 [G, S], and the metrics `advantage_std`, `advantage_max` and `advantage_min` over valid
        members.
    """
    if returns.numel() == 0:
        return returns.float(), _describe(returns.float())
    values = torch.where(valid, returns.double(), 0.0)  # double: a mean of equal numbers should be that number
    count = valid.sum(dim=1, keepdim=True)  # [G, 1]
    mean = values.sum(dim=1, keepdim=True) / count.clamp(min=1)
    centred = torch.where(valid, values - mean, 0.0)
    if normalize_std:
        std = (centred.square().sum(dim=1, keepdim=True) / (count - 1).clamp(min=1)).sqrt()
        centred = centred / (std + EPS)
    advantages = torch.where(_varied(values, valid), centred, 0.0).float()
    return advantages, _describe(advantages[valid])


def _varied(values: Tensor, valid: Tensor) -> Tensor:
    """bool [G, 1]: are two valid returns different? Rounding must not make up an advantage."""
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
