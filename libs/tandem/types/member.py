"""Who takes part in a run: processes by role, index and generation."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Role(StrEnum):
    """What a process is, and so what it may ask of others."""

    CONTROLLER = "controller"
    ROLLOUT = "rollout"
    LEARNER = "learner"
    CHECKPOINT_MANAGER = "checkpoint_manager"
    OPERATOR = "operator"  # a person's command line


@dataclass(frozen=True, slots=True)
class Identity:
    """One life of one process. `index` is a rollout replica's number or a learner's rank. Whoever takes a dead one's
    place has the next `generation`; of the learner all ranks have the same."""

    role: Role
    index: int = 0
    generation: int = 0

    def __str__(self) -> str:
        """As people read it: `rollout 2 (generation 3)`."""
        return f"{self.role.replace('_', ' ')} {self.index} (generation {self.generation})"


@dataclass(frozen=True, slots=True)
class Member:
    """A running service process: host:port where it serves (empty for a rank above 0), the node that it runs on,
    host:port where its metrics are scraped (empty where they are not)."""

    identity: Identity
    address: str
    node: str = ""
    metrics: str = ""

    def __str__(self) -> str:
        """As people read it."""
        return " ".join(filter(None, (str(self.identity), f"at {self.address}" if self.address else "")))


@dataclass(frozen=True, slots=True)
class Death:
    """A member that is no more: `why` in one line, what it logged last."""

    member: Member
    why: str
    last_lines: tuple[str, ...] = ()
