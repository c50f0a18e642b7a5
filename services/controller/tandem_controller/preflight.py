"""What can be known before the first service starts."""

from __future__ import annotations

from pathlib import Path

from tandem.config import Config
from tandem.envs import tasks
from tandem.envs.registry import get_spec
from tandem.types import UserError

SAMPLE = 512  # training tasks the oracle looks at

REHEARSAL = (
    "*** A REHEARSAL: rollout.engine.kind is simulated. No model plays: actions, logprobs and times are made up, and "
    "no figure of this run says anything of a model. ***"
)


def check(config: Config) -> float | None:
    """Refuse a run that cannot work; the share of tasks that the turn limit allows, None where no oracle knows.

    Raises:
        UserError: no model folder, unknown environment, or a turn limit that too many tasks exceed.
    """
    model = Path(config.model.path)
    if not (model / "config.json").is_file():
        raise UserError(f"model.path {model}: no config.json there; give the folder of the base model")
    spec, limit = get_spec(config.env.id), turn_limit(config)
    if spec.optimal_turns is None:
        return None
    sample = tasks.seeds(config.env.id, "train", SAMPLE)
    solvable = sum(spec.optimal_turns(seed) <= limit for seed in sample) / SAMPLE
    if solvable < config.env.min_solvable:
        whose = "env.max_turns" if limit == config.env.max_turns else f"{config.env.id}'s own limit"
        raise UserError(
            f"{whose} of {limit} turns allows only {solvable:.1%} of {config.env.id}'s tasks, by the oracle; "
            f"raise it, or lower env.min_solvable (now {config.env.min_solvable:.1%}) if that is meant"
        )
    return solvable


def turn_limit(config: Config) -> int:
    """Where an episode ends: the recipe's limit or the environment's own, whichever is lower."""
    own = get_spec(config.env.id).turn_limit
    return min(config.env.max_turns, own or config.env.max_turns)


def words(config: Config, solvable: float | None) -> str:
    """What `check` found, in a line, and a loud one where all is made up."""
    loud = f"{REHEARSAL}\n" if config.rollout.engine.kind == "simulated" else ""
    if solvable is None:
        return f"{loud}{config.env.id}: no oracle, so whether {turn_limit(config)} turns are enough is not known"
    return (
        f"{loud}{config.env.id}: {solvable:.1%} of tasks can be solved within {turn_limit(config)} turns, by the oracle"
    )
