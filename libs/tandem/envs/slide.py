"""The sliding block puzzle: eight coloured tiles and a gap on 3 x 3 places, one tile slid a turn, partial credit.

    goal    1 2 3      A board is 9 bytes, row by row; 0 is the gap.
            4 5 6
            7 8 .

Half of all 9! boards can be solved, in at most 31 moves. A task is a board that takes `least` to `most` moves.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from tandem.envs.actions import HIT_WALL, MOVED, NOT_UNDERSTOOD, action_text, find_action
from tandem.envs.ids import Option, check_options, format_id
from tandem.envs.layout import DIRECTION_NAMES, DIRECTIONS, SplitMix64
from tandem.envs.protocol import Env, EnvSpec, Observation, StepResult
from tandem.types import UserError

SIDE, TILES = 3, 8
GOAL = bytes([*range(1, TILES + 1), 0])
DEEPEST = 31  # moves of the hardest board
BRIEF = "Order the tiles."
FULL = (
    "Slide the tiles until they lie in this order, row by row: red, orange, yellow; green, cyan, blue; purple, white, "
    "gap. Answer with one action a turn, which moves a tile into the gap: ('move', 0) right, ('move', 1) up, "
    "('move', 2) left, ('move', 3) down."
)
COLOURS = np.array(
    [
        (0, 0, 0),  # the gap
        (220, 40, 40),
        (250, 150, 30),
        (240, 230, 60),
        (60, 170, 60),
        (70, 210, 220),
        (40, 80, 220),
        (150, 60, 180),
        (250, 250, 250),
    ],
    dtype=np.uint8,
)


@dataclass(frozen=True, slots=True)
class Rules:
    """How deep starts are scrambled, how many turns there are, how large a tile is drawn (pixels), how much is said."""

    least: int = 6
    most: int = 16
    max_moves: int = 16
    tile: int = 16
    brief: bool = True


def slide(board: bytes, direction: int) -> bytes | None:
    """The board after a tile has moved into the gap, or None where no tile can come from."""
    row, column = divmod(board.index(0), SIDE)
    dr, dc = DIRECTIONS[direction]
    source = (row - dr) * SIDE + column - dc  # the tile that moves this way is on the gap's other side
    if not (0 <= row - dr < SIDE and 0 <= column - dc < SIDE):
        return None
    after = bytearray(board)
    after[row * SIDE + column], after[source] = board[source], 0
    return bytes(after)


@lru_cache(maxsize=2)
def moves_to_goal(deepest: int = DEEPEST) -> Mapping[bytes, int]:
    """Moves to the goal from every board that takes at most `deepest`, breadth-first from the goal.

    All 181,440 boards take seconds: only an expert that has left the shortest way needs them.
    """
    found, frontier = {GOAL: 0}, [GOAL]
    for _ in range(deepest):
        reached = []
        for board in frontier:
            for direction in range(4):
                after = slide(board, direction)
                if after is not None and after not in found:
                    found[after] = found[board] + 1
                    reached.append(after)
        frontier = reached
    return MappingProxyType(found)


@lru_cache(maxsize=2)
def _by_depth(deepest: int) -> tuple[tuple[bytes, ...], ...]:
    boards: list[list[bytes]] = [[] for _ in range(deepest + 1)]
    for board, moves in moves_to_goal(deepest).items():
        boards[moves].append(board)
    return tuple(tuple(sorted(same)) for same in boards)


def start_board(seed: int, rules: Rules) -> bytes:
    """The task of a seed: any depth of the range is as likely as another, and any board of that depth."""
    rng = SplitMix64(seed)
    boards = _by_depth(rules.most)[rules.least + rng.below(rules.most - rules.least + 1)]
    return boards[rng.below(len(boards))]


def in_place(board: bytes) -> float:
    """Share of the eight tiles that lie where they belong: a multiple of 1/8."""
    return sum(tile == want for tile, want in zip(board, GOAL, strict=True) if tile) / TILES


def best_direction(board: bytes) -> int:
    """A direction that brings the goal nearer; -1 at the goal."""
    moves = moves_to_goal()
    for direction in range(4):
        after = slide(board, direction)
        if after is not None and moves[after] < moves[board]:
            return direction
    return -1


@lru_cache(maxsize=4096)
def render(board: bytes, tile: int) -> NDArray[np.uint8]:
    """uint8 [3 * tile, 3 * tile, 3]: a tile is a square of its colour with a dark edge, the gap is black."""
    places = COLOURS[np.frombuffer(board, dtype=np.uint8)].reshape(SIDE, SIDE, 3)
    image = places.repeat(tile, axis=0).repeat(tile, axis=1)
    edge = np.arange(SIDE * tile) % tile == 0
    image[edge] = image[:, edge] = 0
    image.flags.writeable = False  # kept for the next time
    return image


class Slide:
    """One puzzle at a time. See `tandem.envs.protocol.Env`.

    `reward` is what the turn gains in the share of tiles in place; the turn that solves it is also paid the share that
    was in place at the start. So a solved episode returns exactly 1.0, and an unsolved one the share at its end minus
    the share at its start (potential-based shaping: Ng, Harada and Russell, ICML 1999).
    """

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.instruction = BRIEF if rules.brief else FULL
        self._board: bytes | None = None

    def reset(self, seed: int) -> Observation:
        self._start = self._board = start_board(seed, self.rules)
        self._turns = self._moves = self._wall_hits = self._invalid = 0
        self._over = False
        return self._observe(self._start, "")

    def step(self, completion_text: str) -> StepResult:
        if self._board is None or self._over:
            raise RuntimeError("step() needs a running episode: call reset() first")
        before, direction = self._board, find_action(completion_text, "move", range(4))
        after = None if direction is None else slide(before, direction)
        self._turns += 1
        self._invalid += direction is None
        self._wall_hits += direction is not None and after is None
        self._moves += after is not None
        self._board = board = after or before
        solved = board == GOAL
        out_of_turns = not solved and self._turns >= self.rules.max_moves
        self._over = solved or out_of_turns
        reward = in_place(board) - in_place(before) + (in_place(self._start) if solved else 0.0)
        words = NOT_UNDERSTOOD if direction is None else MOVED if after else HIT_WALL
        info = {
            "shortest": float(moves_to_goal(self.rules.most)[self._start]),
            "moves": float(self._moves),
            "wall_hits": float(self._wall_hits),
            "invalid": float(self._invalid),
            "in_place": in_place(board),
            "out_of_turns": float(out_of_turns),
        }
        return StepResult(self._observe(board, words), reward, self._over, float(solved), direction is not None, info)

    def close(self) -> None:
        self._board = None

    def expert(self) -> str:
        """What the oracle answers here."""
        if self._board is None or self._board == GOAL:
            raise RuntimeError("expert() needs a running episode: call reset() first")
        return action_text("move", best_direction(self._board))

    def _observe(self, board: bytes, text: str) -> Observation:
        return Observation((render(board, self.rules.tile),), text)


def rules_of(env_id: str, options: Mapping[str, Option]) -> Rules:
    """Rules with an id's options over them. `max_moves` is `most` unless it is given.

    Raises:
        UserError: for an unknown option or a value that cannot be.
    """
    check_options(env_id, options, {"least": int, "most": int, "max_moves": int, "tile": int, "brief": bool})
    rules = replace(Rules(), **options)  # type: ignore[arg-type]
    if "max_moves" not in options:
        rules = replace(rules, max_moves=rules.most)
    if not 1 <= rules.least <= rules.most <= DEEPEST:
        raise UserError(f"{env_id}: least={rules.least} and most={rules.most} must be 1 <= least <= most <= {DEEPEST}")
    if rules.max_moves < 1 or not 4 <= rules.tile <= 256:
        raise UserError(f"{env_id}: max_moves must be at least 1, tile 4 to 256 pixels")
    return rules


def spec(env_id: str, name: str, options: Mapping[str, Option]) -> EnvSpec:
    """The spec of `slide:8?OPTIONS`. Raises UserError for unknown options."""
    rules = rules_of(env_id, options)

    def expert(env: Env) -> str:
        assert isinstance(env, Slide)
        return env.expert()

    harder = range(rules.most + 1, min(rules.most + 4, DEEPEST) + 1)
    easier = {key: value for key, value in options.items() if key not in ("least", "most", "max_moves")}
    deeper = {**easier, "least": harder.start, "most": harder.stop - 1}
    return EnvSpec(
        env_id=env_id,
        make=lambda: Slide(rules),
        task_digest=lambda seed: hashlib.sha256(b"slide 3x3 " + start_board(seed, rules)).hexdigest(),
        optimal_turns=lambda seed: moves_to_goal(rules.most)[start_board(seed, rules)],
        turn_limit=rules.max_moves,
        expert=expert,
        actions=tuple(action_text("move", direction) for direction in range(4)),
        variants={"larger": (format_id(f"slide:{name}", deeper),)} if harder else {},
        describe=lambda seed: describe(start_board(seed, rules)),
    )


def describe(board: bytes) -> str:
    """The board in text and the shortest solution."""
    rows = [" ".join("." if tile == 0 else str(tile) for tile in board[row : row + SIDE]) for row in (0, 3, 6)]
    path: list[str] = []
    while (direction := best_direction(board)) >= 0:
        path.append(DIRECTION_NAMES[direction])
        board = slide(board, direction) or board
    return "\n".join([*rows, f"shortest solution {len(path)} moves: {' '.join(path)}"])
