"""What a rollout asks of an environment: three methods, and frozen replies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Observation:
    """What the model gets to see: `image` uint8 [H, W, 3] or None, and `text` (feedback; empty at a reset)."""

    image: NDArray[np.uint8] | None
    text: str


@dataclass(frozen=True, slots=True)
class StepResult:
    """The environment's reply to one completion.

    `reward` may be shaped; `task_reward` is the bare reward of the task (1.0 means solved). `parsed` is False where
    no action could be read from the completion. `info` holds numbers for the metrics: `shortest` (the oracle's
    optimal number of turns), `wall_hits`, `invalid` and `moves` so far, `out_of_turns` (1.0 where the limit ended it).
    """

    observation: Observation
    reward: float
    terminated: bool
    task_reward: float
    parsed: bool
    info: Mapping[str, float] = field(default_factory=dict)

    @property
    def feedback(self) -> str:
        """The environment's words on this turn, shown to the model in its next prompt."""
        return self.observation.text


class Env(Protocol):
    """One episode at a time. `instruction` is the task in words, the text of the first user turn."""

    instruction: str

    def reset(self, seed: int) -> Observation:
        """Start the episode of this task seed: the same seed gives the same start on every machine."""
        ...

    def step(self, completion_text: str) -> StepResult:
        """Play one turn. Text without an action is a turn too. Raises RuntimeError outside an episode."""
        ...

    def close(self) -> None:
        """Release what the environment holds."""
        ...
