"""What one step plays, and what is learned from it.

Dynamic sampling (Yu et al., "DAPO", 2025): a group whose members all fare alike has no gradient. With
`rollout.max_refills` such groups are replaced by groups of further seeds, in so many rounds at most.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from tandem.types import TrajectoryGroup
from tandem_controller.pipeline import Pipeline
from tandem_controller.playable import check_played


@dataclass(frozen=True, slots=True)
class Played:
    """`groups` is everything played, round by round, in order of seed; `learned` is what the learner gets of it."""

    groups: tuple[TrajectoryGroup, ...]
    learned: tuple[TrajectoryGroup, ...]
    refills: int
    version: int  # of the learner
    fleet: Mapping[str, float]  # what playing was like

    def figures(self) -> dict[str, float]:
        """Figures of a step's rollouts for metrics.jsonl, over everything played."""
        episodes = [trajectory for group in self.groups for trajectory in group.trajectories]
        turns = [turn for trajectory in episodes for turn in trajectory.turns]
        staleness = [self.version - group.oldest_version for group in self.groups]
        stops = [str(trajectory.stop_reason) for trajectory in episodes]
        returns = [trajectory.total_return for group in self.groups for trajectory in group.valid_members]
        return {
            "rollout/groups_played": len(self.groups),
            "rollout/groups_with_signal": sum(group.has_signal for group in self.groups),
            "rollout/groups_learned": len(self.learned),
            "rollout/refills": self.refills,
            "rollout/episodes": len(episodes),
            "rollout/turns": len(turns),
            "rollout/solve_rate": sum(t.solved for t in episodes) / max(1, len(episodes)),
            "rollout/return_mean": sum(returns) / max(1, len(returns)),
            "rollout/parse_failures": sum(not turn.parsed for turn in turns) / max(1, len(turns)),
            "rollout/staleness_mean": sum(staleness) / max(1, len(staleness)),
            "rollout/staleness_max": max(staleness, default=0),
            "rollout/failed_episodes": sum(t.stop_reason.failed for t in episodes),
            **{f"rollout/stop/{reason}": count for reason, count in sorted(Counter(stops).items())},
            **self.fleet,
        }


async def play_step(pipeline: Pipeline, version: int) -> Played:
    """The groups of a step, then as many again as have no signal, and so on.

    A refill asks for what is missing and no more, so nothing with a signal is ever thrown away, and which seeds are
    learned from does not depend on which group came back first. Where not one group has a signal the learner gets
    the first round's: it counts a step without an update.

    Raises:
        TandemError: not one episode could be played.
    """
    rollout = pipeline.config.rollout
    groups, refills = await pipeline.take(version), 0
    wanted = len(groups)
    while (missing := wanted - sum(group.has_signal for group in groups)) and refills < rollout.max_refills:
        groups += await pipeline.refill(version, missing)
        refills += 1
    check_played(f"step {version + 1}", groups)
    learned = groups
    if rollout.max_refills:
        learned = [group for group in groups if group.has_signal] or groups[:wanted]
    return Played(tuple(groups), tuple(learned), refills, version, pipeline.fleet.figures())
