"""`package.module:Class`: an environment of the user's own. Options of the id are the class's keyword arguments."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping

from tandem.envs.ids import Option
from tandem.envs.protocol import Env, EnvSpec
from tandem.envs.starts import start_digest
from tandem.types import UserError

METHODS = ("reset", "step", "close")


def spec(env_id: str, module: str, name: str, options: Mapping[str, Option]) -> EnvSpec:
    """The spec of `MODULE:NAME?OPTIONS`.

    A class may say more of itself: `spec(env_id, **options) -> EnvSpec`, a static method, is then asked for it.

    Raises:
        UserError: it is not there, lacks a method, or does not take these options. Beside that, whatever the module
            raises when it is imported, and its `spec`.
    """
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as problem:
        raise UserError(f"{env_id}: {problem}; is its folder on PYTHONPATH?") from problem
    if not isinstance(found, type):
        raise UserError(f"{env_id}: {name} is not a class")
    if missing := [method for method in METHODS if not callable(getattr(found, method, None))]:
        raise UserError(f"{env_id}: {name} has no method {missing[0]}(); an environment has {', '.join(METHODS)}")
    more = getattr(found, "spec", None)
    call = more if callable(more) else found
    try:
        _check(inspect.signature(call).bind(*([env_id] if call is more else []), **options))
    except TypeError as problem:
        raise UserError(f"{env_id}: {name} does not take these options: {problem}") from problem
    if callable(more):
        described = more(env_id, **options)
        if not isinstance(described, EnvSpec):
            raise UserError(f"{env_id}: {name}.spec() must return an EnvSpec, not {type(described).__name__}")
        return described

    def make() -> Env:
        return found(**options)

    return EnvSpec(env_id, make, start_digest(make))


def _check(bound: inspect.BoundArguments) -> None:
    """Raise TypeError where a parameter that is annotated as a number is given text."""
    for name, parameter in bound.signature.parameters.items():
        kind = getattr(parameter.annotation, "__name__", parameter.annotation)  # a class, or its name as text
        if kind in ("int", "float") and isinstance(bound.arguments.get(name), str):
            raise TypeError(f"{name} must be {kind}, not text")
