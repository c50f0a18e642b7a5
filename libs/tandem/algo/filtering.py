"""Which trajectories and groups are learned from."""

from __future__ import annotations

from collections.abc import Sequence

from tandem.types import Trajectory, TrajectoryGroup


def valid_members(group: TrajectoryGroup) -> tuple[Trajectory, ...]:
    """The trajectories that the policy, not the machinery, ended: others say nothing about the policy."""
    return group.valid_members


def has_signal(group: TrajectoryGroup) -> bool:
    """True where two valid trajectories have different returns: else every advantage of the group is zero."""
    return group.has_signal


def select_groups(
    groups: Sequence[TrajectoryGroup], *, drop_zero_variance: bool
) -> tuple[tuple[TrajectoryGroup, ...], dict[str, float]]:
    """The groups to learn from, in the order given, and what the whole batch looked like.

    Metrics: `groups_used`, `groups_dropped`, `trajectories`, `trajectories_failed`, and over trajectories
    that did not fail `solve_rate`, `return_mean`, `turns_mean`.
    """
    kept = tuple(group for group in groups if has_signal(group) or (not drop_zero_variance and valid_members(group)))
    valid = [trajectory for group in groups for trajectory in valid_members(group)]
    total = sum(len(group.trajectories) for group in groups)
    count = max(len(valid), 1)
    return kept, {
        "groups_used": float(len(kept)),
        "groups_dropped": float(len(groups) - len(kept)),
        "trajectories": float(total),
        "trajectories_failed": float(total - len(valid)),
        "solve_rate": sum(trajectory.solved for trajectory in valid) / count,
        "return_mean": sum(trajectory.total_return for trajectory in valid) / count,
        "turns_mean": sum(len(trajectory.turns) for trajectory in valid) / count,
    }
