"""Which trajectories and groups are learned from, and in which order.

A trajectory that the machinery ended (`StopReason.failed`) is left out of everything. One that ran into a limit of
length is data like any other; `mask_overlong` keeps its return in its group's baseline and leaves it out of the loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from tandem.types import FinishReason, StopReason, Trajectory, TrajectoryGroup


def in_order(groups: Sequence[TrajectoryGroup]) -> tuple[TrajectoryGroup, ...]:
    """Groups by seed and id, members by number: sums then come out the same whatever order they arrived in."""
    ordered = sorted(groups, key=lambda group: (group.seed, group.group_id))
    return tuple(replace(g, trajectories=tuple(sorted(g.trajectories, key=lambda t: t.member))) for g in ordered)


def overlong(trajectory: Trajectory) -> bool:
    """True where a limit of length cut it: a completion at its token limit, or the context was full."""
    cut = any(turn.finish is FinishReason.LENGTH for turn in trajectory.turns)
    return cut or trajectory.stop_reason is StopReason.CONTEXT_LIMIT


def select_groups(
    groups: Sequence[TrajectoryGroup], *, drop_zero_variance: bool
) -> tuple[tuple[TrajectoryGroup, ...], dict[str, float]]:
    """The groups to learn from, in the order given, and the metrics `groups_used` and `groups_dropped`."""
    kept = tuple(group for group in groups if group.has_signal or (not drop_zero_variance and group.valid_members))
    return kept, {"groups_used": float(len(kept)), "groups_dropped": float(len(groups) - len(kept))}


def return_table(groups: Sequence[TrajectoryGroup]) -> tuple[Tensor, Tensor]:
    """Returns of G groups of at most S members: float64 [G, S], and bool [G, S], False for failed and missing ones."""
    size = max((len(group.trajectories) for group in groups), default=0)
    returns = torch.zeros(len(groups), size, dtype=torch.float64)
    valid = torch.zeros(len(groups), size, dtype=torch.bool)
    for row, group in enumerate(groups):
        for column, trajectory in enumerate(group.trajectories):
            returns[row, column] = trajectory.total_return
            valid[row, column] = not trajectory.stop_reason.failed
    return returns, valid
