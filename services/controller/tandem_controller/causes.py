"""Why a member died, in a word: for counting deaths. `telling` says it in full."""

from __future__ import annotations

import re

from tandem.types import Death

# The first that fits counts.
CAUSES: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (name, re.compile(pattern, re.IGNORECASE))
    for name, pattern in (
        ("out_of_memory", r"out of memory|outofmemory|\boom\b"),
        ("node_lost", r"^node lost|\bnode\b.*\b(lost|died|dead|gone)\b"),
        ("unreachable", r"does not answer|no answer|calls of it fail|unreachable|cannot be reached|connection"),
        ("hung", r"\bhangs?\b|\bhung\b|cannot go on"),
        ("killed", r"killed by|was killed|\bSIG[A-Z]+"),
        ("exited", r"exit code|ended"),
    )
)
OTHERWISE = "other"


def cause_of(death: Death) -> str:
    """One of the words above."""
    return next((name for name, pattern in CAUSES if pattern.search(death.why)), OTHERWISE)
