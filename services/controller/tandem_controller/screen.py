"""A table that stays at the bottom of a terminal while lines go by above it."""

from __future__ import annotations

import logging
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

from rich.console import Console, RenderableType
from rich.live import Live

from tandem.obs import get_logger
from tandem.runtime import beside, pause

log = get_logger(__name__)
EVERY_S = 0.5


def drawable(console: Console) -> bool:
    """Whether what is on the screen can be drawn over: a terminal that knows how."""
    return console.is_terminal and not console.is_dumb_terminal


def plain(console: Console) -> bool:
    """Whether it shows ASCII alone."""
    return not console.encoding.lower().startswith("utf")


@asynccontextmanager
async def shown(console: Console, look: Callable[[], RenderableType], alone: bool = False) -> AsyncIterator[None]:
    """Show what `look` gives while the body runs, then leave the terminal as it was; nothing where it cannot be drawn.

    `alone` takes the whole screen and gives it back. Otherwise what is printed and logged meanwhile stays above.
    """
    if not drawable(console):
        yield
        return
    to_terminal = sys.stderr.isatty()  # where it goes to a file, it stays there
    live = Live(console=console, auto_refresh=False, transient=True, screen=alone, redirect_stderr=to_terminal)

    async def draw() -> None:
        while True:
            live.update(look(), refresh=True)
            await pause(EVERY_S)

    def failed(problem: BaseException) -> None:
        log.warning("the table is no longer drawn: %s: %s", type(problem).__name__, problem)

    before = sys.stderr
    with live, _logged_above(before):
        if not alone:
            console.show_cursor(True)  # so that it is there whatever ends this process
        async with beside(draw(), failed):
            yield


@contextmanager
def _logged_above(stderr: object) -> Iterator[None]:
    """Log lines to `stderr` go through what stands in its place now, which draws the table again below them."""
    loggers = [item for item in logging.root.manager.loggerDict.values() if isinstance(item, logging.Logger)]
    handlers = {handler for logger in (logging.root, *loggers) for handler in logger.handlers}
    moved = [h for h in handlers if isinstance(h, logging.StreamHandler) and h.stream is stderr]
    for handler in moved:
        handler.setStream(sys.stderr)
    try:
        yield
    finally:
        for handler in moved:
            handler.setStream(stderr)
