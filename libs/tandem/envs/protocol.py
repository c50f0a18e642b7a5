"""What a rollout asks of an environment: three methods, and frozen replies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Observation:
    """What the model gets to see: `images`, each uint8 [H, W, 3], as many as there are (often one, none in a text
    game), and `text` (feedback; empty at a reset, unless the start has words of its own)."""

    images: tuple[NDArray[np.uint8], ...]
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
    """One episode at a time. `instruction` is the task in words, the text of the first user turn; it is read after
    each reset and may depend on the seed."""

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


@dataclass(frozen=True, slots=True)
class EnvSpec:
    """What the rest of Tandem asks about an environment id without playing it. The id's options are bound in.

    `make()` builds one. `task_digest(seed)` (hex sha256) identifies the task behind a seed: two seeds with one digest
    are one task, and the digest decides the split. `optimal_turns(seed)` is the oracle's number of turns, None where
    there is no oracle; `shortest(seed)` its number of moves where that differs (a closing 'stop' is no move).
    `turn_limit` is where the environment itself ends an episode. `expert(env)` is the text an optimal player answers
    with in the environment's present state. `actions` are all texts that act, empty where they cannot be listed.
    `variants` names suites of ids that are never trained on. `describe(seed)` shows a task to people.
    """

    env_id: str
    make: Callable[[], Env]
    task_digest: Callable[[int], str]
    optimal_turns: Callable[[int], int] | None = None
    shortest: Callable[[int], int] | None = None
    turn_limit: int | None = None
    expert: Callable[[Env], str] | None = None
    actions: tuple[str, ...] = ()
    variants: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    describe: Callable[[int], str] | None = None
