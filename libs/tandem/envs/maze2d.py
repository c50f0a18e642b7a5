"""Maze2D: find the way from the top left room to the bottom right one, seen as an image, one move a turn."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from tandem.envs import actions
from tandem.envs.actions import ENDED, HIT_WALL, MOVED, NOT_UNDERSTOOD, find_action
from tandem.envs.ids import Option, check_options, format_id
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
from tandem.envs.maze_style import CLASSIC, RANDOM, STYLES, Style, render, style_of
from tandem.envs.protocol import Env, EnvSpec, Observation, StepResult
from tandem.types import UserError

FULL_INSTRUCTION = (
    "You are the {agent} in a maze of {walls}. Reach the red square. Answer with one action a turn: "
    "('move', 0) right, ('move', 1) up, ('move', 2) left, ('move', 3) down{stop}."
)
STOP_CLAUSE = ", or ('stop', 'stop') once you stand on the red square"
BRIEF_INSTRUCTION = "Reach the red square."
MOST_ROOMS = 16  # along one side

_STOP = re.compile(r"""\(\s*['"]?stop['"]?\s*,\s*['"]?stop['"]?\s*\)""")

Action: TypeAlias = int | str  # a direction 0..3, or "stop"


@dataclass(frozen=True, slots=True)
class MazePreset:
    """The rules of one maze family.

    A room and the wall after it are `pitch` pixels, `wall` of them the wall's; `margin` is what the outer walls add to
    the picture. `stride` is how many cells of the block grid one move crosses. `max_moves` counts turns, whatever they
    did. With `require_stop` the goal must be confirmed by ('stop', 'stop').
    """

    rooms: int
    pitch: int
    wall: int
    margin: int
    stride: int
    max_moves: int
    require_stop: bool
    brief: bool = False
    style: str = "classic"

    @property
    def start(self) -> Cell:
        return (1, 1)

    @property
    def goal(self) -> Cell:
        return (2 * self.rooms - 1, 2 * self.rooms - 1)

    @property
    def widths(self) -> tuple[int, ...]:
        """Pixels of each row and column of the block grid, as the classic style has them."""
        return self.widths_in(CLASSIC)

    def widths_in(self, style: Style) -> tuple[int, ...]:
        """The same in another style: thicker walls take from the rooms, the picture keeps its size."""
        extra = 2 * round(style.thicker * (self.pitch - self.wall) / 2)  # even: both outer walls take their half
        wall, outer = self.wall + extra, (self.margin + self.wall + extra) // 2
        return (outer, *(self.pitch - wall, wall) * (self.rooms - 1), self.pitch - wall, outer)


def worst_case(rooms: int, stride: int, require_stop: bool) -> int:
    """The oracle's worst case over all spanning trees, the stop included, in turns.

    A path visits each room at most once, and between two corners of one colour of an n x n chessboard it has at most
    n*n - 1 (odd n) or n*n - 2 room steps.
    """
    return (rooms * rooms - 1 - (rooms % 2 == 0)) * (1 if stride == 2 else 2) + require_stop


PRESETS: dict[str, MazePreset] = {
    "easy": MazePreset(4, pitch=50, wall=25, margin=25, stride=1, max_moves=29, require_stop=True),
    "hard": MazePreset(5, pitch=50, wall=25, margin=25, stride=1, max_moves=49, require_stop=True),
    "tiny": MazePreset(4, pitch=16, wall=2, margin=0, stride=2, max_moves=14, require_stop=False, brief=True),
}


def parse_action(text: str) -> Action | None:
    """The first ('move', d) or ('stop', 'stop') in a text, spaces and quotes taken loosely; None if there is none."""
    stop = _STOP.search(text)
    direction = find_action(text[: stop.start()] if stop else text, "move", range(4))
    return "stop" if stop and direction is None else direction


def action_text(action: Action) -> str:
    """The text a demonstration answers with: the inverse of `parse_action`."""
    return actions.action_text("stop" if action == "stop" else "move", action)


class Maze2D:
    """One maze episode at a time. See `tandem.envs.protocol.Env`."""

    def __init__(self, preset: MazePreset) -> None:
        self.preset = preset
        self.instruction = instruction(preset, CLASSIC)
        self._walls: Walls | None = None
        self._over = True

    def reset(self, seed: int) -> Observation:
        self._walls = make_walls(seed, self.preset.rooms)
        self._style = style_of(self.preset.style, seed)
        self.instruction = instruction(self.preset, self._style)
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

    def expert(self) -> str:
        """What the oracle answers here."""
        if self._walls is None:
            raise RuntimeError("expert() needs a running episode: call reset() first")
        steps = distances(self._walls, self.preset.goal, self.preset.stride)
        best = best_direction(self._walls, steps, self._agent, self.preset.stride)
        return action_text(best if best >= 0 else "stop")

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
        widths = self.preset.widths_in(self._style)
        return Observation((render(self._walls, widths, self._agent, self.preset.goal, self._style),), text)


def instruction(preset: MazePreset, style: Style) -> str:
    """The task in words."""
    if preset.brief:
        return BRIEF_INSTRUCTION
    stop = STOP_CLAUSE if preset.require_stop else ""
    return FULL_INSTRUCTION.format(agent=style.agent_is, walls=style.walls_are, stop=stop)


def optimal_turns(walls: Walls, preset: MazePreset) -> int:
    """Turns the oracle needs from the start: the shortest path, and one more where 'stop' must be called."""
    steps = distances(walls, preset.goal, preset.stride)
    return int(steps[preset.start]) + int(preset.require_stop)


def oracle_directions(walls: Walls, preset: MazePreset) -> dict[Cell, int]:
    """The optimal direction from every cell the agent can stand in, the goal left out."""
    steps = distances(walls, preset.goal, preset.stride)
    cells = [(int(r), int(c)) for r, c in zip(*np.nonzero(steps > 0), strict=True)]
    return {cell: best_direction(walls, steps, cell, preset.stride) for cell in cells}


def with_options(env_id: str, name: str, options: Mapping[str, Option]) -> MazePreset:
    """A preset with an id's options over it: `style`, `rooms`, `max_moves`, `require_stop`.

    `max_moves` follows the other two unless it is given.

    Raises:
        UserError: for an unknown option or a value of the wrong kind.
    """
    check_options(env_id, options, {"max_moves": int, "require_stop": bool, "rooms": int, "style": str})
    preset = replace(PRESETS[name], **options)  # type: ignore[arg-type]
    if not 2 <= preset.rooms <= MOST_ROOMS:
        raise UserError(f"{env_id}: rooms={preset.rooms} must be 2 to {MOST_ROOMS}")
    if preset.style not in (*STYLES, RANDOM):
        raise UserError(f"{env_id}: unknown style {preset.style!r}; known: {', '.join((*STYLES, RANDOM))}")
    if preset.max_moves < 1:
        raise UserError(f"{env_id}: max_moves={preset.max_moves} must be at least 1")
    if "max_moves" in options:
        return preset
    return replace(preset, max_moves=worst_case(preset.rooms, preset.stride, preset.require_stop))


def spec(env_id: str, name: str, options: Mapping[str, Option]) -> EnvSpec:
    """The spec of `maze2d:NAME?OPTIONS`. Raises UserError for unknown options."""
    preset = with_options(env_id, name, options)

    def walls(seed: int) -> Walls:
        return make_walls(seed, preset.rooms)

    def expert(env: Env) -> str:
        assert isinstance(env, Maze2D)
        return env.expert()

    return EnvSpec(
        env_id=env_id,
        make=lambda: Maze2D(preset),
        task_digest=lambda seed: digest(walls(seed)),
        optimal_turns=lambda seed: optimal_turns(walls(seed), preset),
        shortest=lambda seed: len(shortest_path(walls(seed), preset.start, preset.goal, preset.stride)),
        turn_limit=preset.max_moves,
        expert=expert,
        actions=tuple(map(action_text, (0, 1, 2, 3, *(["stop"] if preset.require_stop else [])))),
        variants=_variants(f"maze2d:{name}", options, preset),
        describe=lambda seed: describe(seed, preset),
    )


def _variants(name: str, options: Mapping[str, Option], preset: MazePreset) -> dict[str, tuple[str, ...]]:
    """The same tasks in every other style, and larger ones with the turns that they need."""
    others = [style for style in STYLES if style not in ("classic", preset.style)]
    unlimited = {key: value for key, value in options.items() if key != "max_moves"}
    larger = [preset.rooms + more for more in (1, 2) if preset.rooms + more <= MOST_ROOMS]
    return {
        "styles": tuple(format_id(name, {**options, "style": style}) for style in others),
        "larger": tuple(format_id(name, {**unlimited, "rooms": rooms}) for rooms in larger),
    }


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
