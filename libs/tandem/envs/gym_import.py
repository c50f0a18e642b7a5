"""gymnasium, imported so that its games are drawn without a display and by many threads at once."""

from __future__ import annotations

import importlib
import os
from contextlib import suppress
from threading import Lock
from types import ModuleType

from tandem.types import UserError

LOADING = Lock()


def import_gymnasium(env_id: str) -> ModuleType:
    """The module `gymnasium`. Raises UserError if it is not installed."""
    for name, value in (
        ("SDL_VIDEODRIVER", "dummy"),
        ("SDL_AUDIODRIVER", "dummy"),
        ("PYGAME_HIDE_SUPPORT_PROMPT", "1"),
    ):
        os.environ.setdefault(name, value)  # pygame draws without a display, and is silent
    try:
        gymnasium = importlib.import_module("gymnasium")
    except ImportError as problem:
        raise UserError(f"{env_id}: gymnasium is not installed; install tandem[gym]") from problem
    # pygame-ce loads surfarray when an attribute of it is first read, and a thread that reads one meanwhile finds
    # nothing. So it is read here, once, before any environment draws.
    with LOADING, suppress(ImportError, NotImplementedError):  # no pygame, or one without surfarray: not all games draw
        _ = importlib.import_module("pygame").surfarray.pixels3d
    return gymnasium
