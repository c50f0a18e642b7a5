"""Perfect mazes: uniform spanning trees over n x n rooms, and the oracle that knows the way.

A maze is a block grid `walls`, bool [2n+1, 2n+1], True where a wall stands. Room (r, c) is the cell (2r+1, 2c+1); the
cell between two rooms is open exactly where the tree joins them. Directions are 0 right, 1 up, 2 left, 3 down.
"""

from __future__ import annotations

import hashlib
from collections import deque
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

DIRECTIONS: tuple[tuple[int, int], ...] = ((0, 1), (-1, 0), (0, -1), (1, 0))  # (row, column) of 0, 1, 2, 3
DIRECTION_NAMES = ("right", "up", "left", "down")

_MASK = (1 << 64) - 1

Walls: TypeAlias = NDArray[np.bool_]
Cell: TypeAlias = tuple[int, int]


class SplitMix64:
    """The splitmix64 generator (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).

    Plain integer arithmetic of our own, because a seed must give the same maze on every machine and under every
    numpy, and numpy promises that for its bit generators only, not for the draws made from them.
    """

    def __init__(self, seed: int) -> None:
        self._state = seed & _MASK

    def next(self) -> int:
        """The next integer, uniform over 0 .. 2**64 - 1."""
        self._state = (self._state + 0x9E3779B97F4A7C15) & _MASK
        z = self._state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
        return z ^ (z >> 31)

    def below(self, bound: int) -> int:
        """An integer of 0 .. bound - 1 (the modulo's bias is under bound / 2**64)."""
        return self.next() % bound


def make_walls(seed: int, rooms: int) -> Walls:
    """The maze of a seed: a uniform spanning tree by Wilson's algorithm (Wilson, STOC 1996).

    Args:
        seed: any integer >= 0.
        rooms: n, rooms along one side.
    Returns:
        bool [2n+1, 2n+1], True = wall.
    """
    rng = SplitMix64(seed)
    walls = np.ones((2 * rooms + 1, 2 * rooms + 1), dtype=bool)
    walls[1::2, 1::2] = False
    neighbours = [_neighbours(room, rooms) for room in range(rooms * rooms)]
    in_tree = [False] * (rooms * rooms)
    in_tree[rng.below(rooms * rooms)] = True
    leaves_to: dict[int, int] = {}
    for first in range(rooms * rooms):
        room = first
        while not in_tree[room]:  # a random walk; overwriting the way out erases its loops
            options = neighbours[room]
            leaves_to[room] = options[rng.below(len(options))]
            room = leaves_to[room]
        room = first
        while not in_tree[room]:
            in_tree[room] = True
            nxt = leaves_to[room]
            # the wall cell between two rooms is the mean of the two room cells: 2r+1 and 2r'+1 give r+r'+1
            walls[room // rooms + nxt // rooms + 1, room % rooms + nxt % rooms + 1] = False
            room = nxt
    return walls


def _neighbours(room: int, rooms: int) -> list[int]:
    r, c = divmod(room, rooms)
    around = [(r + dr, c + dc) for dr, dc in DIRECTIONS]
    return [rr * rooms + cc for rr, cc in around if 0 <= rr < rooms and 0 <= cc < rooms]


def digest(walls: Walls) -> str:
    """sha256 of a layout: what decides its split. Two seeds with the same walls have the same digest."""
    return hashlib.sha256(f"{walls.shape}".encode() + np.packbits(walls).tobytes()).hexdigest()


def distances(walls: Walls, goal: Cell, stride: int) -> NDArray[np.int64]:
    """Moves to the goal from every cell (breadth-first), -1 where there is no way.

    One move crosses `stride` cells: 1 walks the block grid, 2 walks from room to room. Returns int64, shape of walls.
    """
    out = np.full(walls.shape, -1, dtype=np.int64)
    out[goal] = 0
    queue = deque([goal])
    while queue:
        cell = queue.popleft()
        for direction in range(4):
            nxt = move(walls, cell, direction, stride)
            if nxt is not None and out[nxt] < 0:
                out[nxt] = out[cell] + 1
                queue.append(nxt)
    return out


def move(walls: Walls, cell: Cell, direction: int, stride: int) -> Cell | None:
    """The cell one move away, or None where a wall stands in between."""
    dr, dc = DIRECTIONS[direction]
    if walls[cell[0] + dr, cell[1] + dc]:
        return None
    return cell[0] + dr * stride, cell[1] + dc * stride


def best_direction(walls: Walls, steps: NDArray[np.int64], cell: Cell, stride: int) -> int:
    """The first direction that brings the cell nearer to the goal of `steps` (from `distances`); -1 at the goal.

    In a perfect maze there is exactly one way, so "first" never has to choose.
    """
    for direction in range(4):
        nxt = move(walls, cell, direction, stride)
        if nxt is not None and 0 <= steps[nxt] < steps[cell]:
            return direction
    return -1


def shortest_path(walls: Walls, start: Cell, goal: Cell, stride: int) -> list[int]:
    """Directions from start to goal along the shortest path."""
    steps = distances(walls, goal, stride)
    path: list[int] = []
    cell = start
    while cell != goal:
        direction = best_direction(walls, steps, cell, stride)
        nxt = move(walls, cell, direction, stride) if direction >= 0 else None
        if nxt is None:
            raise ValueError(f"no way from {start} to {goal}")
        path.append(direction)
        cell = nxt
    return path
