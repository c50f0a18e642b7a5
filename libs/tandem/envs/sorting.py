"""Sorting by swaps of neighbours: a text game. What is seen is the row of digits, as `3142`."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from itertools import combinations, pairwise

from tandem.envs.actions import NOT_UNDERSTOOD, action_text, find_action
from tandem.envs.ids import Option, check_options, format_id
from tandem.envs.layout import SplitMix64
from tandem.envs.protocol import Env, EnvSpec, Observation, StepResult
from tandem.types import UserError

BRIEF = "Sort."
FULL = "Sort the digits. Answer with one action a turn: ('swap', i) swaps the i-th digit, counted from 1, and the next."
LENGTHS = range(3, 10)


def start_row(seed: int, length: int) -> tuple[int, ...]:
    """The task of a seed: a permutation of 1 .. length that is not sorted, each as likely (Fisher-Yates)."""
    rng = SplitMix64(seed)
    row = list(range(1, length + 1))
    while inversions(row) == 0:
        for last in range(length - 1, 0, -1):
            other = rng.below(last + 1)
            row[last], row[other] = row[other], row[last]
    return tuple(row)


def inversions(row: tuple[int, ...] | list[int]) -> int:
    """Pairs in the wrong order: as many swaps of neighbours are needed, since one swap mends one pair at most."""
    return sum(left > right for left, right in combinations(row, 2))


class Sorting:
    """One row at a time. See `tandem.envs.protocol.Env`. Pays 1.0 for the sorted row, nothing before."""

    def __init__(self, length: int, max_moves: int, brief: bool) -> None:
        self.length = length
        self.max_moves = max_moves
        self.instruction = BRIEF if brief else FULL
        self._row: tuple[int, ...] = ()
        self._over = True

    def reset(self, seed: int) -> Observation:
        self._row = start_row(seed, self.length)
        self._shortest = inversions(self._row)
        self._turns = self._invalid = 0
        self._over = False
        return Observation((), self._text())

    def step(self, completion_text: str) -> StepResult:
        if self._over:
            raise RuntimeError("step() needs a running episode: call reset() first")
        place = find_action(completion_text, "swap", range(1, self.length))
        self._turns += 1
        if place is None:
            self._invalid += 1
        else:
            row = self._row
            self._row = (*row[: place - 1], row[place], row[place - 1], *row[place + 1 :])
        solved = inversions(self._row) == 0
        out_of_turns = not solved and self._turns >= self.max_moves
        self._over = solved or out_of_turns
        info = {
            "shortest": float(self._shortest),
            "moves": float(self._turns - self._invalid),
            "invalid": float(self._invalid),
            "out_of_turns": float(out_of_turns),
        }
        text = self._text() if place is not None else f"{NOT_UNDERSTOOD}\n{self._text()}"
        return StepResult(Observation((), text), float(solved), self._over, float(solved), place is not None, info)

    def close(self) -> None:
        self._over = True

    def expert(self) -> str:
        """A swap that mends one pair."""
        for place, (left, right) in enumerate(pairwise(self._row), start=1):
            if left > right:
                return action_text("swap", place)
        raise RuntimeError("expert() needs a running episode: call reset() first")

    def _text(self) -> str:
        return "".join(map(str, self._row))


def spec(env_id: str, name: str, options: Mapping[str, Option]) -> EnvSpec:
    """The spec of `sort:LENGTH?OPTIONS`. Raises UserError for unknown options."""
    check_options(env_id, options, {"max_moves": int, "brief": bool})
    length = int(name)
    max_moves = int(options.get("max_moves", length * (length - 1) // 2) or 0)  # the reversed row takes that many
    if max_moves < 1:
        raise UserError(f"{env_id}: max_moves={max_moves} must be at least 1")

    unlimited = {key: value for key, value in options.items() if key != "max_moves"}
    larger = tuple(format_id(f"sort:{more}", unlimited) for more in (length + 1, length + 2) if more in LENGTHS)

    def row(seed: int) -> tuple[int, ...]:
        return start_row(seed, length)

    def expert(env: Env) -> str:
        assert isinstance(env, Sorting)
        return env.expert()

    return EnvSpec(
        env_id=env_id,
        make=lambda: Sorting(length, max_moves, bool(options.get("brief", True))),
        task_digest=lambda seed: hashlib.sha256(f"sort {row(seed)}".encode()).hexdigest(),
        optimal_turns=lambda seed: inversions(row(seed)),
        turn_limit=max_moves,
        expert=expert,
        actions=tuple(action_text("swap", place) for place in range(1, length)),
        variants={"larger": larger} if larger else {},
        describe=lambda seed: f"{''.join(map(str, row(seed)))}\nshortest solution {inversions(row(seed))} swaps",
    )
