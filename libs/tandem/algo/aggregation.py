"""Token losses -> one loss: `sum of weight * token loss`, with the weights known before any forward pass.

An aggregation takes the sampled tokens of every trajectory of the whole global batch, int64 [N], none of them 0, and
gives the weight of each of a trajectory's tokens, float64 [N]. The sum is then the same however the batch is split
over ranks and microbatches, and whichever rows are shared. A trajectory counts as one sequence, whatever its window.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

Aggregation = Callable[[Tensor, int], Tensor]


def token_weights(name: str, lengths: Tensor, longest: int) -> Tensor:
    """Weights by the aggregation `name`, a key of `AGGREGATIONS`.

    Args:
        lengths: int64 [N], sampled tokens of each trajectory. One without any weighs nothing and is not counted.
        longest: most tokens that a trajectory can have, a constant of the run.
    Returns:
        float32 [N].
    """
    weights = torch.zeros(len(lengths), dtype=torch.float64)
    if (some := lengths > 0).any():
        weights[some] = AGGREGATIONS[name](lengths[some].double(), longest)
    return weights.float()


def token_mean(lengths: Tensor, longest: int) -> Tensor:
    """Mean over all tokens (DAPO, Yu et al. 2025, arXiv:2503.14476): long trajectories weigh more.

    w = 1 / sum of lengths
    """
    return (1 / lengths.sum()).expand(len(lengths))


def seq_mean_token_mean(lengths: Tensor, longest: int) -> Tensor:
    """Mean over trajectories of their token mean (GRPO, Shao et al. 2024, arXiv:2402.03300): all weigh the same.

    w = 1 / (N length)
    """
    return 1 / (len(lengths) * lengths)


def seq_mean_token_sum(lengths: Tensor, longest: int) -> Tensor:
    """Mean over trajectories of their token sum, the policy gradient itself: the gradient grows with the lengths.

    w = 1 / N
    """
    return torch.ones_like(lengths) / len(lengths)


def seq_mean_token_sum_norm(lengths: Tensor, longest: int) -> Tensor:
    """The same over a constant length (Dr. GRPO, Liu et al. 2025, arXiv:2503.20783): unbiased, of a mean's size.

    w = 1 / (N longest)
    """
    return seq_mean_token_sum(lengths, longest) / longest


AGGREGATIONS: Mapping[str, Aggregation] = {
    "token_mean": token_mean,
    "seq_mean_token_mean": seq_mean_token_mean,
    "seq_mean_token_sum": seq_mean_token_sum,
    "seq_mean_token_sum_norm": seq_mean_token_sum_norm,
}
