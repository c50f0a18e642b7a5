"""What befalls a run, in what phase of its steps, and when: drawn from a seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """A fault. `host` is the Ray actor beside a service, `engine` its vLLM process; what is paused is stopped by
    SIGSTOP and goes on later."""

    REPLICA = "kill replica"
    REPLICA_HOST = "kill replica's host"
    RANK_0 = "kill rank 0"
    RANK_1 = "kill rank 1"
    RANK_HOST = "kill rank 1's host"
    MANAGER = "kill manager"
    CONTROLLER = "kill controller"
    NODE = "kill node"
    REPLICA_PAUSED = "pause replica"
    REPLICA_SILENT = "pause replica for good"
    RANK_PAUSED = "pause rank 1"
    MANAGER_PAUSED = "pause manager"
    CONTROLLER_PAUSED = "pause controller"
    NODE_SLOW = "slow node"
    ENGINE = "kill engine"
    ENGINE_SILENT = "pause engine for good"


KILLS = tuple(kind for kind in Kind if kind.startswith("kill"))
PHASES = ("generate", "train", "sync", "save", "eval")
ON_NODES = (Kind.NODE, Kind.NODE_SLOW)  # these need nodes that can be lost
OF_VLLM = (Kind.ENGINE, Kind.ENGINE_SILENT)
PAUSED_S = 3.0


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: `share` of its phase's usual time after that began; `soon`: a share of some seconds after the one
    before, which is being mended then, in whatever phase."""

    kind: Kind
    phase: str
    share: float
    soon: bool = False

    def __str__(self) -> str:
        return (
            f"{self.kind} while another is mended" if self.soon else f"{self.kind} in {self.phase} at {self.share:.0%}"
        )


def drawn(seed: int, count: int, kinds: Sequence[Kind] = tuple(Kind), phases: Sequence[str] = PHASES) -> list[Fault]:
    """So many faults: every kind equally often, and each in every phase before it comes in one twice. About one in six
    comes before the last one is mended, never two in a row."""
    dice = random.Random(seed)
    order = {kind: dice.sample(phases, len(phases)) for kind in kinds}
    rounds = -(-count // len(kinds))
    found = [
        (kind, order[kind][number % len(phases)]) for number in range(rounds) for kind in dice.sample(kinds, len(kinds))
    ][:count]
    faults = list[Fault]()
    for kind, phase in found:
        soon = bool(faults) and not faults[-1].soon and dice.random() < 1 / 6
        faults.append(Fault(kind, phase, dice.random(), soon))
    return faults
