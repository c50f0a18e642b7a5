"""What can be known before the first service starts."""

from __future__ import annotations

from pathlib import Path

from tandem.config import Config
from tandem.envs import tasks
from tandem.envs.registry import get_spec
from tandem.types import UserError

SAMPLE = 512  # training tasks the oracle looks at


def check(config: Config) -> float:
    """Refuse a run that cannot work; the share of tasks that the turn limit allows, by the oracle.

    Raises:
        UserError: no model folder, unknown environment, or a turn limit that too many tasks exceed.
    """
    model = Path(config.model.path)
    if not (model / "config.json").is_file():
        raise UserError(f"model.path {model}: no config.json there; give the folder of the base model")
    spec = get_spec(config.env.id)
    sample = tasks.seeds(config.env.id, "train", SAMPLE)
    solvable = sum(spec.optimal_turns(seed) <= config.env.max_turns for seed in sample) / SAMPLE
    if solvable < config.env.min_solvable:
        raise UserError(
            f"env.max_turns {config.env.max_turns} allows only {solvable:.1%} of {config.env.id}'s tasks, "
            "by the oracle; "
            f"raise it, or lower env.min_solvable (now {config.env.min_solvable:.1%}) if that is meant"
        )
    return solvable
