"""Actions as text, as `('move', 2)`, and the few words that environments answer with."""

from __future__ import annotations

import re
from functools import lru_cache

MOVED, HIT_WALL, ENDED = "Moved.", "Hit a wall.", "Stopped."
NOT_UNDERSTOOD = "Not understood."


@lru_cache(maxsize=64)
def _pattern(verb: str) -> re.Pattern[str]:
    return re.compile(rf"""\(\s*['"]?{re.escape(verb)}['"]?\s*,\s*['"]?(\w+)['"]?\s*\)""")


def action_text(verb: str, value: int | str) -> str:
    """The text of an action: a number stands bare, a word in quotes."""
    return f"('{verb}', {value!r})"


def find_action(text: str, verb: str, numbers: range) -> int | None:
    """The number of the first ('verb', number) in a text, spaces and quotes taken loosely; None if there is none."""
    for match in _pattern(verb).finditer(text):
        if match[1].isascii() and match[1].isdigit() and int(match[1]) in numbers:
            return int(match[1])
    return None
