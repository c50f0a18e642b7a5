"""Why Ray says that an actor is gone, in one line."""

from __future__ import annotations

import re

from ray.exceptions import RayError

from tandem.types import Member

EXIT = re.compile(r"Worker exit type: (\w+)")


def cause(problem: RayError, member: Member | None) -> str:
    """What became of a member's actor, by the error that a call to it ended with."""
    text = " ".join(str(problem).split())
    where = f"node {member.node}" if member and member.node else "its node"
    if "node has died" in text or "node died" in text.lower():
        return f"node lost: {where} is no longer part of the Ray cluster"
    found = EXIT.search(text)
    kind = found[1] if found else ""
    if "OUT_OF_MEMORY" in kind or "running low on memory" in text:
        return f"out of memory: Ray's memory monitor killed it, {where} was running low"
    if kind == "SYSTEM_ERROR":
        return f"its host process on {where} was killed or crashed; the exit status is unknown"
    return f"its host process on {where} is gone: {text[:300]}"
