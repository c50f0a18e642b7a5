"""Who plays and who must not be played beside: a learner that is brought back needs the GPUs that engines play on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Quiet:
    """Plays go on side by side; a rest waits until they have ended, and those that come then wait for its end."""

    def __init__(self) -> None:
        self._plays = 0
        self._none, self._open = asyncio.Event(), asyncio.Event()
        self._none.set()
        self._open.set()

    @asynccontextmanager
    async def playing(self) -> AsyncIterator[None]:
        """The body plays."""
        await self._opened()
        self._plays += 1
        self._none.clear()
        try:
            yield
        finally:
            self._plays -= 1
            if not self._plays:
                self._none.set()

    @asynccontextmanager
    async def resting(self) -> AsyncIterator[None]:
        """Nothing is played during the body; one rest at a time."""
        await self._opened()
        self._open.clear()
        try:
            await self._none.wait()
            yield
        finally:
            self._open.set()

    async def _opened(self) -> None:
        while not self._open.is_set():  # of several that waited, one may have closed it again
            await self._open.wait()
