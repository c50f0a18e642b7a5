"""How the turns of many episodes reach the engine: each as it comes, or in rounds.

Rounds make what the engine computes independent of timing:

    every episode:  wait for its turn's request ----+
                                                    +-- all are there --> the engine, in order --> all step --> ...
    every episode:  wait for its turn's request ----+

An engine that batches continuously changes logits in their last bits with the batch's composition, and with one
flipped draw everything after it. Here the composition is a function of the episodes alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

from tandem_rollout.engine import Completion, Engine, Request


class Pace(Protocol):
    """When an episode may play, and when its turns are generated."""

    def seat(self) -> AbstractAsyncContextManager[None]:
        """Held for as long as an episode plays."""
        ...

    async def generate(self, place: int, request: Request) -> Completion:
        """As `Engine.generate`. `place` is the episode's in the order of those that play together."""
        ...

    async def close(self) -> None:
        """Leave nothing running in the engine."""
        ...


class Continuous:
    """Each request at once, with so many episodes playing at a time."""

    def __init__(self, engine: Engine, episodes: int) -> None:
        self._engine = engine
        self._seats = asyncio.Semaphore(episodes)

    @asynccontextmanager
    async def seat(self) -> AsyncIterator[None]:
        async with self._seats:
            yield

    async def generate(self, place: int, request: Request) -> Completion:
        return await self._engine.generate(request)

    async def close(self) -> None:
        """Each request ends with its episode."""


class Rounds:
    """All requests together, of a fixed number of episodes that start together."""

    def __init__(self, engine: Engine, episodes: int) -> None:
        self._engine = engine
        self._playing = episodes
        self._waiting: dict[int, tuple[Request, asyncio.Future[Completion]]] = {}
        self._round: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def seat(self) -> AsyncIterator[None]:
        try:
            yield
        finally:
            self._playing -= 1
            self._start_if_complete()

    async def generate(self, place: int, request: Request) -> Completion:
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._waiting[place] = request, future
        self._start_if_complete()
        try:
            return await future
        finally:
            self._waiting.pop(place, None)  # an episode cut off while it waited asks no more

    async def close(self) -> None:
        """End the round that is left where its episodes were cut off."""
        if self._round is not None:
            self._round.cancel()
            await asyncio.wait({self._round})

    def _start_if_complete(self) -> None:
        if self._waiting and len(self._waiting) == self._playing:
            asked = [self._waiting.pop(place) for place in sorted(self._waiting)]
            self._round = asyncio.create_task(self._play([a[0] for a in asked], [a[1] for a in asked]))

    async def _play(self, requests: Sequence[Request], futures: Sequence[asyncio.Future[Completion]]) -> None:
        (answers,) = await asyncio.gather(self._engine.generate_together(requests), return_exceptions=True)
        if isinstance(answers, BaseException):  # it failed as a whole
            answers = [answers] * len(requests)
        for answer, future in zip(answers, futures, strict=True):
            if future.done():  # its episode was cut off
                continue
            if isinstance(answer, BaseException):
                future.set_exception(answer)
            else:
                future.set_result(answer)
