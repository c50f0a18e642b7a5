"""Whether a URL from the wire lies where a run keeps its weights: checked before a file is opened."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from tandem.types import UserError

_PARTS = re.compile(r"(/[A-Za-z0-9_][A-Za-z0-9._=-]*)+")  # no `..`, nothing hidden, no query, no other file system
_LOCAL = ("file://", "local://")


def check_place(url: str, places: Sequence[str]) -> None:
    """Whether a published folder's URL is one of `places` (URLs or paths) or lies below one; symlinks are followed.

    Raises:
        UserError: it does not.
    """
    if not any(_within(url, place) for place in places if place):
        told = ", ".join(filter(None, places)) or "none"
        raise UserError(f"{url[:200]!r} is not in the run's store; weights are read from these alone: {told}")


def _within(url: str, place: str) -> bool:
    root = place.rstrip("/")
    if "://" in place and not place.startswith(_LOCAL):
        rest = url.removeprefix(root).rstrip("/")
        return url.startswith(root) and (not rest or _PARTS.fullmatch(rest) is not None)
    if "://" in url or "::" in url or not url.startswith("/") or "\0" in url:
        return False
    for scheme in _LOCAL:
        root = root.removeprefix(scheme)
    return Path(url).resolve().is_relative_to(Path(root or "/").resolve())
