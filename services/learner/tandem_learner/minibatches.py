"""A step's groups as the minibatches of its updates, and what is measured of them before anything moves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tandem.algo import KL_ESTIMATORS, Packed, flatten, overlong, pack, split_contiguous
from tandem.types import TrajectoryGroup
from tandem_learner.forward import Measured


@dataclass(frozen=True)
class Minibatch:
    """N trajectories that one update learns from. `places`: where they stand in the flattened table of returns."""

    packed: Packed
    places: Tensor  # int64 [N]
    counts: Mapping[str, float]


def make_minibatches(
    groups: Sequence[TrajectoryGroup], count: int, members: int, *, mask_overlong: bool
) -> list[Minibatch]:
    """Whole groups in `count` runs of about equal size; a run without a sampled token is left out.

    Args:
        members: columns of the table of returns, a row per group.
        mask_overlong: leave out what a limit of length cut; what failed is left out in any case.
    """
    found = []
    for run in split_contiguous([1] * len(groups), count):
        chosen = [
            (row * members + column, trajectory.turns)
            for row in run
            for column, trajectory in enumerate(groups[row].trajectories)
            if not (trajectory.stop_reason.failed or (mask_overlong and overlong(trajectory)))
        ]
        packed, counts = pack([turns for _, turns in chosen])
        if packed.tokens:
            places = torch.tensor([place for place, _ in chosen])
            found.append(Minibatch(packed, places, {**counts, "trajectories_used": float(len(chosen))}))
    return found


def kl_of_trajectories(packed: Packed, ref: Measured, start: Measured | None, estimator: str) -> Tensor:
    """Each trajectory's estimated KL to the base model, summed over its tokens on this rank: float64 [N].

    Under the learner's logprobs `start`, or without them under the rollout's.
    """
    total = torch.zeros(len(packed.lengths), dtype=torch.float64)
    for row, base in ref.items():
        flat = flatten([packed.occurrences[row]])
        own = start[row].cpu()[flat.distinct] if start is not None else flat.rollout_logprobs
        kl = KL_ESTIMATORS[estimator](own - base.cpu()[flat.distinct])
        total.index_add_(0, flat.members, kl.double())
    return total
