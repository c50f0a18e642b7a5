"""Environments by name: `make("maze2d:tiny")`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tandem.envs import maze2d
from tandem.envs.layout import digest, make_walls, shortest_path
from tandem.envs.protocol import Env
from tandem.types import UserError


@dataclass(frozen=True, slots=True)
class EnvSpec:
    """What the rest of Tandem asks about a kind of environment without playing it.

    `make(**options)` builds one. `layout_digest(seed)` identifies the task behind a seed: two seeds with one digest
    are one task. `optimal_turns(seed, **options)` is the oracle's number of turns, `shortest(seed)` its number of
    moves, `turn_limit(**options)` where the environment itself ends an episode. `describe(seed)` is for people.
    """

    env_id: str
    make: Callable[..., Env]
    layout_digest: Callable[[int], str]
    optimal_turns: Callable[..., int]
    shortest: Callable[[int], int]
    turn_limit: Callable[..., int]
    describe: Callable[[int], str]


def _maze_spec(name: str) -> EnvSpec:
    preset = maze2d.PRESETS[name]

    def walls(seed: int) -> maze2d.Walls:
        return make_walls(seed, preset.rooms)

    return EnvSpec(
        env_id=f"maze2d:{name}",
        make=lambda **options: maze2d.Maze2D(maze2d.with_options(name, **options)),
        layout_digest=lambda seed: digest(walls(seed)),
        optimal_turns=lambda seed, **options: maze2d.optimal_turns(walls(seed), maze2d.with_options(name, **options)),
        shortest=lambda seed: len(shortest_path(walls(seed), preset.start, preset.goal, preset.stride)),
        turn_limit=lambda **options: maze2d.with_options(name, **options).max_moves,
        describe=lambda seed: maze2d.describe(seed, preset),
    )


_SPECS: dict[str, EnvSpec] = {spec.env_id: spec for spec in map(_maze_spec, maze2d.PRESETS)}


def env_ids() -> list[str]:
    """All known environment ids, sorted."""
    return sorted(_SPECS)


def get_spec(env_id: str) -> EnvSpec:
    """The spec of an id. Raises UserError, naming the known ids, where there is none."""
    if env_id not in _SPECS:
        raise UserError(f"unknown environment {env_id!r}; known: {', '.join(env_ids())}")
    return _SPECS[env_id]


def make(env_id: str, **options: object) -> Env:
    """Build an environment. Raises UserError for an unknown id or option."""
    return get_spec(env_id).make(**options)
