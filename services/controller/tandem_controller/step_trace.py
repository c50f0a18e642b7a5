"""A step as a trace: what its root says of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tandem.obs import trace
from tandem_controller.run_dir import RunDir

# what of a step's figures its root carries, by the names of attributes
FIGURES = {
    "rl.solve_rate": "rollout/solve_rate",
    "rl.reward.mean": "rollout/return_mean",
    "rl.staleness.mean": "rollout/staleness_mean",
    "rl.staleness.max": "rollout/staleness_max",
    "rl.episodes": "rollout/episodes",
    "rl.groups": "rollout/groups_played",
    "rl.groups.learned": "rollout/groups_learned",
    "rl.loss": "loss",
}


@contextmanager
def step_trace(run: RunDir, version: int) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """The body makes the version after `version`: one trace of all processes. What is yielded takes its figures."""
    about = {"rl.step": version + 1, "rl.policy_version": version, "tandem.run.id": str(run.facts.get("run_id", ""))}

    def told(row: Mapping[str, Any]) -> None:
        root.set({name: row[figure] for name, figure in FIGURES.items() if figure in row})

    with trace("step", about, step=version + 1, version=version) as root:
        yield told
