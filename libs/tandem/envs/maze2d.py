"""Maze2D: find the way from the top left room to the bottom right one, seen as an image, one move a turn."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tandem.envs.layout import (
    DIRECTION_NAMES,
    Cell,
    Walls,
    best_direction,
    digest,
    distances,
    make_walls,
    move,
    shortest_path,
)
from tandem.envs.protocol import Observation, StepResult
from tandem.types import UserError

FLOOR, WALL = (255, 255, 255), (110, 110, 110)
AGENT, GOAL = (30, 80, 220), (220, 40, 40)

MOVED, HIT_WALL, ENDED = "Moved.", "Hit a wall.", "Stopped."
NOT_UNDERSTOOD = "Not understood."

FULL_INSTRUCTION = (
    "You are the blue disc in a maze of grey walls. Reach the red square. Answer with one action a turn: "
    "('move', 0) right, ('move', 1) up, ('move', 2) left, ('move', 3) down{stop}."
)
STOP_CLAUSE = ", or ('stop', 'stop') once you stand on the red square"
BRIEF_INSTRUCTION = "Reach the red square."

_ACTION = re.compile(r"""\(\s*['"]?(?:move['"]?\s*,\s*(?P<move>[0-3])|(?P<stop>stop)['"]?\s*,\s*['"]?stop['"]?)\s*\)""")

Action: TypeAlias = int | str  # a direction 0..3, or "stop"


@dataclass(frozen=True, slots=True)
class MazePreset:
    """The rules of one maze family.

    `widths` are the pixels of each row and column of the block grid; `stride` is how many cells one move crosses;
    `max_moves` counts turns, whatever they did. With `require_stop` the goal must be confirmed by ('stop', 'stop').
    """

    rooms: int
    widths: tuple[int, ...]
    stride: int
    max_moves: int
    require_stop: bool
    brief: bool = False

    @property
    def start(self) -> Cell:
        return (1, 1)

    @property
    def goal(self) -> Cell:
        return (2 * self.rooms - 1, 2 * self.rooms - 1)


# max_moves is the oracle's worst case over all spanning trees (plus the stop): a path visits each room at most once,
# and between two corners of one colour of an n x n chessboard it has at most n*n - 1 (odd n) or n*n - 2 room steps.
PRESETS: dict[str, MazePreset] = {
    "easy": MazePreset(rooms=4, widths=(25,) * 9, stride=1, max_moves=29, require_stop=True),
    "hard": MazePreset(rooms=5, widths=(25,) * 11, stride=1, max_moves=49, require_stop=True),
    "tiny": MazePreset(
        rooms=4, widths=(1, 14, 2, 14, 2, 14, 2, 14, 1), stride=2, max_moves=14, require_stop=False, brief=True
    ),
}


def parse_action(text: str) -> Action | None:
    """The first ('move', d) or ('stop', 'stop') in a text, spaces and quotes taken loosely; None if there is none."""
    match = _ACTION.search(text)
    if match is None:
        return None
    return "stop" if match["stop"] else int(match["move"])


def action_text(action: Action) -> str:
    """The text a demonstration answers with: the inverse of `parse_action`."""
    return "('stop', 'stop')" if action == "stop" else f"('move', {action})"


def render(walls: Walls, widths: tuple[int, ...], agent: Cell, goal: Cell) -> NDArray[np.uint8]:
    """Draw a maze: uint8 [sum(widths), sum(widths), 3], the agent a blue disc over the goal's red square."""
    image = _background(walls.tobytes(), walls.shape[0], widths).copy()
    _paint(image, widths, goal, disc=False, colour=GOAL)
    _paint(image, widths, agent, disc=True, colour=AGENT)
    return image


@lru_cache(maxsize=4096)
def _background(walls: bytes, side: int, widths: tuple[int, ...]) -> NDArray[np.uint8]:
    cells = np.frombuffer(walls, dtype=bool).reshape(side, side)
    blocks = np.where(cells[..., None], np.array(WALL, np.uint8), np.array(FLOOR, np.uint8))  # [2n+1, 2n+1, 3]
    return np.repeat(np.repeat(blocks, widths, axis=0), widths, axis=1)


def _paint(
    image: NDArray[np.uint8], widths: tuple[int, ...], cell: Cell, disc: bool, colour: tuple[int, int, int]
) -> None:
    (top, height), (left, width) = ((sum(widths[:i]), widths[i]) for i in cell)
    mask = _shape(height, width, disc)
    image[top : top + height, left : left + width][mask] = colour


@lru_cache(maxsize=64)
def _shape(height: int, width: int, disc: bool) -> NDArray[np.bool_]:
    y = (np.arange(height) + 0.5) / height * 2 - 1  # cell coordinates in -1 .. 1
    x = (np.arange(width) + 0.5) / width * 2 - 1
    if disc:
        return y[:, None] ** 2 + x[None, :] ** 2 <= 0.7**2
    return np.maximum(abs(y)[:, None], abs(x)[None, :]) <= 0.8


class Maze2D:
    """One maze episode at a time. See `tandem.envs.protocol.Env`."""

    def __init__(self, preset: MazePreset) -> None:
        self.preset = preset
        stop = STOP_CLAUSE if preset.require_stop else ""
        self.instruction = BRIEF_INSTRUCTION if preset.brief else FULL_INSTRUCTION.format(stop=stop)
        self._walls: Walls | None = None
        self._over = True

    def reset(self, seed: int) -> Observation:
        self._walls = make_walls(seed, self.preset.rooms)
        self._agent = self.preset.start
        self._turns = self._moves = self._wall_hits = self._invalid = 0
        self._shortest = optimal_turns(self._walls, self.preset)
        self._over = False
        return self._observe("")

    def step(self, completion_text: str) -> StepResult:
        if self._over or self._walls is None:
            raise RuntimeError("step() needs a running episode: call reset() first")
        action = parse_action(completion_text)
        feedback = self._apply(self._walls, action)
        self._turns += 1
        at_goal = self._agent == self.preset.goal
        solved = at_goal and (action == "stop" or not self.preset.require_stop)
        out_of_turns = not solved and action != "stop" and self._turns >= self.preset.max_moves
        self._over = solved or action == "stop" or out_of_turns
        info = {
            "shortest": float(self._shortest),
            "moves": float(self._moves),
            "wall_hits": float(self._wall_hits),
            "invalid": float(self._invalid),
            "out_of_turns": float(out_of_turns),
        }
        reward = 1.0 if solved else 0.0
        return StepResult(self._observe(feedback), reward, self._over, reward, action is not None, info)

    def close(self) -> None:
        self._walls, self._over = None, True

    def _apply(self, walls: Walls, action: Action | None) -> str:
        """Carry out an action; returns the feedback."""
        if action is None:
            self._invalid += 1
            return NOT_UNDERSTOOD
        if not isinstance(action, int):
            return ENDED
        target = move(walls, self._agent, action, self.preset.stride)
        if target is None:
            self._wall_hits += 1
            return HIT_WALL
        self._agent = target
        self._moves += 1
        return MOVED

    def _observe(self, text: str) -> Observation:
        assert self._walls is not None
        return Observation(render(self._walls, self.preset.widths, self._agent, self.preset.goal), text)


def optimal_turns(walls: Walls, preset: MazePreset) -> int:
    """Turns the oracle needs from the start: the shortest path, and one more where 'stop' must be called."""
    steps = distances(walls, preset.goal, preset.stride)
    return int(steps[preset.start]) + int(preset.require_stop)


def oracle_directions(walls: Walls, preset: MazePreset) -> dict[Cell, int]:
    """The optimal direction from every cell the agent can stand in, the goal left out."""
    steps = distances(walls, preset.goal, preset.stride)
    cells = [(int(r), int(c)) for r, c in zip(*np.nonzero(steps > 0), strict=True)]
    return {cell: best_direction(walls, steps, cell, preset.stride) for cell in cells}


def with_options(name: str, **options: object) -> MazePreset:
    """A preset with options over it: `max_moves` (int > 0) and `require_stop` (bool).

    Raises:
        UserError: for an unknown option or a value of the wrong kind.
    """
    kinds: dict[str, type] = {"max_moves": int, "require_stop": bool}
    for key, value in options.items():
        if key not in kinds:
            raise UserError(f"maze2d:{name}: unknown option {key!r}; known: {', '.join(sorted(kinds))}")
        if type(value) is not kinds[key] or (key == "max_moves" and int(str(value)) < 1):
            raise UserError(f"maze2d:{name}: option {key}={value!r} must be a positive {kinds[key].__name__}")
    return replace(PRESETS[name], **options)  # type: ignore[arg-type]


def describe(seed: int, preset: MazePreset) -> str:
    """The map in text (S start, G goal, dots along the shortest path), start, goal and the path itself."""
    walls = make_walls(seed, preset.rooms)
    path = shortest_path(walls, preset.start, preset.goal, preset.stride)
    marks = {preset.start: "S", preset.goal: "G"}
    cell = preset.start
    for direction in path[:-1]:
        for _ in range(preset.stride):
            cell = move(walls, cell, direction, 1) or cell
            marks.setdefault(cell, ".")
    side = range(walls.shape[0])
    rows = ["".join(marks.get((r, c), "#" if walls[r, c] else " ") for c in side) for r in side]
    return "\n".join(
        [
            *rows,
            f"start {preset.start}  goal {preset.goal}  (row, column of the block grid)",
            f"shortest path {len(path)} moves: {' '.join(DIRECTION_NAMES[d] for d in path)}",
            f"layout {digest(walls)[:12]}",
        ]
    )
