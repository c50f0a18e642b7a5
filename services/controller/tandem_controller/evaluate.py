"""Solve rates on task suites, with intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from tandem.config import Config
from tandem.envs import tasks
from tandem.types import ContextPolicy, RolloutTask, Sampling, TrajectoryGroup
from tandem_controller.fleet import Fleet

EVAL_SEED = 20_261_130  # sampling seed of every evaluation: two adapters meet the same dice
FIXED_GREEDY = "fixed greedy"


@dataclass(frozen=True, slots=True)
class Suite:
    """Tasks to solve: `samples` episodes each, greedy (temperature 0) or sampled."""

    name: str
    split: str
    tasks: int
    samples: int
    temperature: float


@dataclass(frozen=True, slots=True)
class SuiteResult:
    """What came of a suite. `low`, `high`: Wilson's 95% interval of the solve rate."""

    suite: str
    episodes: int
    solved: int
    rate: float
    low: float
    high: float
    mean_turns: float
    parse_failures: float  # share of turns
    failed_episodes: int  # by the machinery, not the policy


def suites(config: Config) -> list[Suite]:
    """The fixed set and the held-out one, each greedy and (with `eval.samples`) at temperature 1."""
    wanted = config.eval
    rows = [
        Suite(FIXED_GREEDY, "fixed", wanted.fixed, 1, 0.0),
        Suite("fixed sampled", "fixed", wanted.fixed, wanted.samples, 1.0),
        Suite("held-out greedy", "heldout", wanted.heldout, 1, 0.0),
        Suite("held-out sampled", "heldout", wanted.heldout, min(1, wanted.samples), 1.0),
    ]
    return [suite for suite in rows if suite.tasks and suite.samples]


def limited(suite: Suite, limit: int) -> Suite:
    """The suite with at most `limit` tasks; 0 leaves it whole."""
    return replace(suite, tasks=min(suite.tasks, limit)) if limit else suite


async def evaluate(
    fleet: Fleet,
    config: Config,
    version: int,
    wanted: Sequence[Suite],
    on_group: Callable[[TrajectoryGroup], None] = lambda group: None,
) -> dict[str, tuple[SuiteResult, list[TrajectoryGroup]]]:
    """Play the suites under the served policy version; by suite name the result and the groups."""
    results = {}
    for suite in wanted:
        task = RolloutTask(
            env=config.env.id,
            seeds=tuple(tasks.seeds(config.env.id, suite.split, suite.tasks)),
            group_size=suite.samples,
            policy_version=version,
            sampling=Sampling(suite.temperature, max_tokens=config.rollout.max_tokens),
            context=ContextPolicy(config.env.window),
            max_turns=config.env.max_turns,
            sampling_seed=EVAL_SEED,
        )
        groups = await fleet.play(task, on_group)
        results[suite.name] = (summarize(suite.name, groups), groups)
    return results


async def fixed_greedy(fleet: Fleet, config: Config, version: int) -> float:
    """Greedy solve rate on the fixed set: the headline figure."""
    suite = Suite(FIXED_GREEDY, "fixed", config.eval.fixed, 1, 0.0)
    return (await evaluate(fleet, config, version, [suite]))[suite.name][0].rate


def summarize(name: str, groups: Sequence[TrajectoryGroup]) -> SuiteResult:
    """Solve rate by the task reward. An episode that the machinery failed counts as unsolved, and is counted apart."""
    episodes = [trajectory for group in groups for trajectory in group.trajectories]
    turns = [turn for trajectory in episodes for turn in trajectory.turns]
    solved = sum(trajectory.solved for trajectory in episodes)
    low, high = wilson(solved, len(episodes))
    return SuiteResult(
        suite=name,
        episodes=len(episodes),
        solved=solved,
        rate=solved / max(1, len(episodes)),
        low=low,
        high=high,
        mean_turns=len(turns) / max(1, len(episodes)),
        parse_failures=sum(not turn.parsed for turn in turns) / max(1, len(turns)),
        failed_episodes=sum(trajectory.stop_reason.failed for trajectory in episodes),
    )


def wilson(successes: int, trials: int, z: float = 1.959964) -> tuple[float, float]:
    """Score interval of a proportion (E. B. Wilson, JASA 22, 1927); z is the normal quantile, 95% by default.

    Returns:
        (low, high) within [0, 1]; (0, 1) without trials.
    """
    if not trials:
        return 0.0, 1.0
    share, zz = successes / trials, z * z / trials
    centre = share + zz / 2
    spread = z * math.sqrt(share * (1 - share) / trials + zz / (4 * trials))
    return max(0.0, (centre - spread) / (1 + zz)), min(1.0, (centre + spread) / (1 + zz))


def as_json(results: Mapping[str, tuple[SuiteResult, list[TrajectoryGroup]]]) -> dict[str, dict]:
    """The results without the episodes, by suite name."""
    return {name: asdict(result) for name, (result, _) in results.items()}
