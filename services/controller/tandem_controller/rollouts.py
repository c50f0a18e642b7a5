"""What one step plays, and what is learned from it.

Dynamic sampling (Yu et al., "DAPO", 2025): a group whose members all fare alike has no gradient. With
`rollout.max_refills` such groups are replaced by groups of further seeds, in so many rounds at most.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tandem.config import Config
from tandem.envs import tasks
from tandem.types import ContextPolicy, RolloutTask, Sampling, TrajectoryGroup
from tandem_controller.fleet import Fleet, check_played


@dataclass(frozen=True, slots=True)
class Played:
    """`groups` is everything played, in order of seed; `learned` is what the learner gets of it."""

    groups: tuple[TrajectoryGroup, ...]
    learned: tuple[TrajectoryGroup, ...]
    refills: int
    next_seed: int

    def figures(self) -> dict[str, float]:
        """Figures of a step's rollouts for metrics.jsonl, over everything played."""
        episodes = [trajectory for group in self.groups for trajectory in group.trajectories]
        turns = [turn for trajectory in episodes for turn in trajectory.turns]
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
            "rollout/failed_episodes": sum(t.stop_reason.failed for t in episodes),
        }


async def play_step(
    fleet: Fleet,
    config: Config,
    version: int,
    next_seed: int,
    on_group: Callable[[TrajectoryGroup], None] = lambda group: None,
) -> Played:
    """Play `groups_per_step` groups from `next_seed` on, then as many again as have no signal, and so on.

    A refill asks for what is missing and no more, so nothing with a signal is ever thrown away, and which seeds are
    learned from does not depend on which group came back first. Where not one group has a signal the learner gets
    the first round's: it counts a step without an update.

    Raises:
        TandemError: not one episode could be played.
    """
    wanted, groups, rounds = config.rollout.groups_per_step, list[TrajectoryGroup](), 0
    missing = wanted
    while missing and rounds <= config.rollout.max_refills:
        seeds = tasks.seeds(config.env.id, "train", missing, next_seed)
        groups += await fleet.play(training_task(config, version, seeds), on_group)
        rounds, next_seed = rounds + 1, seeds[-1] + 1
        missing = wanted - sum(group.has_signal for group in groups)
    check_played(f"step {version + 1}", groups)
    learned = groups
    if config.rollout.max_refills:
        learned = [group for group in groups if group.has_signal] or groups[:wanted]
    return Played(tuple(groups), tuple(learned), rounds - 1, next_seed)


def training_task(config: Config, version: int, seeds: Sequence[int]) -> RolloutTask:
    """What to ask the fleet for."""
    rollout = config.rollout
    return RolloutTask(
        env=config.env.id,
        seeds=tuple(seeds),
        group_size=rollout.group_size,
        policy_version=version,
        sampling=Sampling(rollout.temperature, max_tokens=rollout.max_tokens),
        context=ContextPolicy(config.env.window),
        max_turns=config.env.max_turns,
        sampling_seed=config.run.seed,
    )
