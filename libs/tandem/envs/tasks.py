"""Task seeds by split. A task's split is decided by its digest (of a maze, its layout), never by its seed.

So no task can be in two splits, whoever asks and with whatever seeds: pre-training, SFT and RL draw from "train"
only, evaluation from "fixed" (the demo's 64) and "heldout".
"""

from __future__ import annotations

from tandem.envs.registry import get_spec
from tandem.types import UserError

BUCKETS = 64
SPLITS: dict[str, range] = {"fixed": range(1), "heldout": range(1, 4), "train": range(4, BUCKETS)}

_SEEDS_A_TASK = 8  # looked at so many seeds for every task seen, one misses 1 of 3,000 equally likely tasks
_LEAST_SEEDS = 300


def split_of(task_digest: str) -> str:
    """The split of a task, by its hex digest modulo 64: 0 fixed, 1..3 heldout, the rest train."""
    bucket = int(task_digest[:16], 16) % BUCKETS
    return next(name for name, buckets in SPLITS.items() if bucket in buckets)


def seeds(env_id: str, split: str, count: int, start: int = 0) -> list[int]:
    """`up_to` of exactly `count`.

    Raises:
        UserError: unknown environment or split, or more tasks asked than the split has.
    """
    found = up_to(env_id, split, count, start)
    if len(found) < count:
        raise UserError(
            f"{env_id}: split {split!r} has only {len(found)} tasks; {count} were asked for: "
            "ask for fewer, or choose an environment with more"
        )
    return found


def up_to(env_id: str, split: str, count: int, start: int = 0) -> list[int]:
    """The first `count` seeds >= `start`, increasing, whose task falls in `split`; fewer where it has no more.

    For "fixed" and "heldout" no two returned seeds are the same task, so that no task counts twice.

    Raises:
        UserError: unknown environment or split, or the environment raises.
    """
    if split not in SPLITS:
        raise UserError(f"unknown split {split!r}; known: {', '.join(SPLITS)}")
    task_digest = get_spec(env_id).task_digest
    found: list[int] = []
    known: set[str] = set()  # tasks of all splits
    seed = start
    while len(found) < count:
        key = task_digest(seed)
        if split_of(key) == split and (split == "train" or key not in known):
            found.append(seed)
        known.add(key)
        seed += 1
        endless = split == "train" and found
        if not endless and seed - start > max(_LEAST_SEEDS, _SEEDS_A_TASK * len(known)):
            break  # there are no more
    return found
