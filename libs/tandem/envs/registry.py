"""Environments by id: built-in (`maze2d:tiny?style=night`), gymnasium's (`gym:Taxi-v3`), your own (`module:Class`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache

from tandem.envs import gym_adapter, maze2d, own, slide, sorting
from tandem.envs.checks import blaming, checked_spec
from tandem.envs.ids import Option, parse_id
from tandem.envs.protocol import Env, EnvSpec
from tandem.types import UserError

# kind -> (spec of env id, name after the colon and options; names to list)
BUILT_IN: dict[str, tuple[Callable[[str, str, Mapping[str, Option]], EnvSpec], tuple[str, ...]]] = {
    "maze2d": (maze2d.spec, tuple(maze2d.PRESETS)),
    "slide": (slide.spec, ("8",)),
    "sort": (sorting.spec, tuple(map(str, sorting.LENGTHS))),
}
OTHER_IDS = ("gym:<gymnasium id>", "package.module:Class")


def env_ids() -> list[str]:
    """The built-in environment ids, sorted, without options."""
    return sorted(f"{kind}:{name}" for kind, (_, names) in BUILT_IN.items() for name in names)


@lru_cache(maxsize=256)
def get_spec(env_id: str) -> EnvSpec:
    """The spec of an id, its options bound in; what the functions of other people's answer is checked.

    Raises:
        UserError: no such environment, it does not know an option, or it raises when it is imported or described.
    """
    full, options = parse_id(env_id)
    kind, _, name = full.partition(":")
    if kind in BUILT_IN and name in BUILT_IN[kind][1]:
        return BUILT_IN[kind][0](env_id, name, options)
    if kind == "gym" and name:
        with blaming(env_id):
            return checked_spec(env_id, gym_adapter.spec(env_id, name, options))
    if kind not in BUILT_IN and kind and name:
        with blaming(env_id):
            return checked_spec(env_id, own.spec(env_id, kind, name, options))
    known = ", ".join(env_ids())
    raise UserError(f"unknown environment {full!r}; known: {known}, {', '.join(OTHER_IDS)}")


def make(env_id: str) -> Env:
    """Build an environment. Raises UserError for an unknown id or option."""
    return get_spec(env_id).make()
