"""How a maze looks. Styles change every pixel and no task: the layout alone decides a task's digest.

The goal is some red square in every style, so "Reach the red square." is always true; all else may differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tandem.envs.layout import Cell, SplitMix64, Walls

Colour: TypeAlias = tuple[int, int, int]
Texture: TypeAlias = Literal["plain", "checks", "stripes", "bricks"]
Shape: TypeAlias = Literal["disc", "square", "triangle", "diamond"]

TEXTURES: tuple[Texture, ...] = ("plain", "checks", "stripes", "bricks")
AGENT_SHAPES: tuple[Shape, ...] = ("disc", "triangle", "diamond")  # the goal alone is a square
SHADE = 0.86  # of a texture's darker half


@dataclass(frozen=True, slots=True)
class Style:
    """Colours, textures, wall thickness and the agent's shape.

    `thicker` is the share of a room's width that the walls take on top of their own. `agent_is` and `walls_are` are
    the agent and the walls in the instruction's words.
    """

    agent_is: str = "blue disc"
    walls_are: str = "grey walls"
    floor: Colour = (255, 255, 255)
    wall: Colour = (110, 110, 110)
    agent: Colour = (30, 80, 220)
    goal: Colour = (220, 40, 40)
    floor_texture: Texture = "plain"
    wall_texture: Texture = "plain"
    agent_shape: Shape = "disc"
    thicker: float = 0.0


CLASSIC = Style()
STYLES: dict[str, Style] = {
    "classic": CLASSIC,
    "garden": Style(  # other colours
        agent_is="orange disc",
        walls_are="green walls",
        floor=(240, 230, 200),
        wall=(60, 120, 70),
        agent=(250, 160, 20),
        goal=(190, 20, 70),
    ),
    "night": Style(  # light on dark
        agent_is="cyan disc",
        walls_are="light walls",
        floor=(20, 22, 40),
        wall=(165, 170, 195),
        agent=(70, 215, 230),
        goal=(235, 60, 60),
    ),
    "thick": Style(thicker=0.3),
    "bricks": Style(  # textured
        walls_are="brick walls",
        floor=(235, 232, 220),
        wall=(150, 120, 100),
        floor_texture="checks",
        wall_texture="bricks",
    ),
    "triangle": Style(agent_is="blue triangle", agent_shape="triangle"),
}
RANDOM = "random"  # a style of its own for every task seed


def style_of(name: str, seed: int) -> Style:
    """The style of that name; `random` draws one from the task seed."""
    return _random_style(seed) if name == RANDOM else STYLES[name]


def render(walls: Walls, widths: tuple[int, ...], agent: Cell, goal: Cell, style: Style = CLASSIC) -> NDArray[np.uint8]:
    """Draw a maze: uint8 [sum(widths), sum(widths), 3], the agent over the goal's square.

    `widths` are the pixels of each row and column of the block grid.
    """
    image = _background(walls.tobytes(), walls.shape[0], widths, style).copy()
    _paint(image, widths, goal, "square", style.goal)
    _paint(image, widths, agent, style.agent_shape, style.agent)
    return image


@lru_cache(maxsize=4096)
def _background(walls: bytes, side: int, widths: tuple[int, ...], style: Style) -> NDArray[np.uint8]:
    cells = np.frombuffer(walls, dtype=bool).reshape(side, side)
    is_wall = np.repeat(np.repeat(cells, widths, axis=0), widths, axis=1)  # [H, W]
    wall = _textured(style.wall, style.wall_texture, len(is_wall))
    return np.where(is_wall[..., None], wall, _textured(style.floor, style.floor_texture, len(is_wall)))


def _textured(colour: Colour, texture: Texture, side: int) -> NDArray[np.uint8]:
    """A colour with its texture's pattern: uint8 [side, side, 3]."""
    y, x = np.indices((side, side))
    dark = {
        "plain": np.zeros((side, side), dtype=bool),
        "checks": (y // 2 + x // 2) % 2 == 1,
        "stripes": (y + x) // 2 % 2 == 1,
        "bricks": (y % 4 == 3) | ((x + 4 * (y // 4 % 2)) % 8 == 7),
    }[texture]
    both = np.array([colour, [int(part * SHADE) for part in colour]], dtype=np.uint8)  # [2, 3]
    return both[dark.astype(np.int64)]


def _paint(image: NDArray[np.uint8], widths: tuple[int, ...], cell: Cell, shape: Shape, colour: Colour) -> None:
    (top, height), (left, width) = ((sum(widths[:i]), widths[i]) for i in cell)
    image[top : top + height, left : left + width][_mask(height, width, shape)] = colour


@lru_cache(maxsize=64)
def _mask(height: int, width: int, shape: Shape) -> NDArray[np.bool_]:
    y = ((np.arange(height) + 0.5) / height * 2 - 1)[:, None]  # cell coordinates in -1 .. 1
    x = ((np.arange(width) + 0.5) / width * 2 - 1)[None, :]
    if shape == "disc":
        return y**2 + x**2 <= 0.7**2
    if shape == "triangle":  # its tip is up
        return (abs(y) <= 0.75) & (abs(x) <= (y + 0.75) / 1.5 * 0.8)
    if shape == "diamond":
        return abs(y) + abs(x) <= 0.8
    return np.maximum(abs(y), abs(x)) <= 0.8


def _random_style(seed: int) -> Style:
    rng = SplitMix64(seed ^ 0x5EED_0F_57_17E5)
    goal = (190 + rng.below(60), 20 + rng.below(50), 20 + rng.below(50))
    found: list[Colour] = [goal]
    while len(found) < 4:  # floor, wall and agent: each apart from the others and from red
        colour = (rng.below(256), rng.below(256), rng.below(256))
        if all(_distance(colour, other) >= 120 for other in found):
            found.append(colour)
    _, floor, wall, agent = found
    return Style(
        agent_is="other figure",
        walls_are="walls",
        floor=floor,
        wall=wall,
        agent=agent,
        goal=goal,
        floor_texture=TEXTURES[rng.below(len(TEXTURES))],
        wall_texture=TEXTURES[rng.below(len(TEXTURES))],
        agent_shape=AGENT_SHAPES[rng.below(len(AGENT_SHAPES))],
        thicker=(0.0, 0.15, 0.3)[rng.below(3)],
    )


def _distance(one: Colour, other: Colour) -> float:
    return sum((a - b) ** 2 for a, b in zip(one, other, strict=True)) ** 0.5
