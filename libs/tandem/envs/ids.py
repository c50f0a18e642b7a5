"""Environment ids: a name, and options after a `?`. `maze2d:tiny?style=night&rooms=5` says all there is to say.

An option's value is a JSON scalar (`5`, `0.5`, `true`, `null`, `"text"`) or else plain text. An id travels as it is,
from the recipe to the recorded episode, so an episode alone says how it is played again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TypeAlias

from tandem.types import UserError

Option: TypeAlias = str | int | float | bool | None


def parse_id(env_id: str) -> tuple[str, dict[str, Option]]:
    """Name and options of an id. Raises UserError for an option without a value or given twice."""
    name, asked, query = env_id.partition("?")
    options: dict[str, Option] = {}
    for item in query.split("&") if asked else ():
        key, given, text = item.partition("=")
        if not key or not given:
            raise UserError(f"{env_id}: options are written NAME?key=value&key=value; {item!r} is none")
        if key in options:
            raise UserError(f"{env_id}: option {key!r} is given twice")
        options[key] = _value(text)
    return name, options


def format_id(name: str, options: Mapping[str, Option]) -> str:
    """The id that `parse_id` reads back: options in their order."""
    query = "&".join(f"{key}={_text(value)}" for key, value in options.items())
    return f"{name}?{query}" if query else name


def check_options(env_id: str, options: Mapping[str, Option], kinds: Mapping[str, type]) -> None:
    """Refuse options beyond `kinds` (name -> type), or of another type. Whole numbers pass as floats.

    Raises:
        UserError: names the option and what is known.
    """
    for key, value in options.items():
        if key not in kinds:
            known = ", ".join(sorted(kinds)) or "none"
            raise UserError(f"{env_id}: unknown option {key!r}; known: {known}")
        kind = kinds[key]
        if type(value) is not kind and not (kind is float and type(value) is int):
            raise UserError(f"{env_id}: option {key}={_text(value)} must be a {kind.__name__}")


def _value(text: str) -> Option:
    try:
        value = json.loads(text, parse_constant=str)  # NaN and Infinity stay text
    except ValueError:
        return text
    return text if isinstance(value, list | dict) else value


def _text(value: Option) -> str:
    """`value` as an id has it: text as it is, unless it would be read back as something else."""
    if isinstance(value, str) and _value(value) == value:
        return value
    return json.dumps(value)
