"""Deadlines and retries."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

from tandem.types import Unavailable

T = TypeVar("T")


@asynccontextmanager
async def deadline(seconds: float, what: str) -> AsyncIterator[None]:
    """Cancel the body after `seconds`.

    Raises:
        Unavailable: the body was cut off; the message names `what` and the limit.
    """
    try:
        async with asyncio.timeout(seconds) as scope:
            yield
    except TimeoutError as problem:
        if not scope.expired():
            raise
        raise Unavailable(f"{what}: no answer within {seconds:g} s") from problem


@dataclass(frozen=True, slots=True)
class Retry:
    """Try again on `Unavailable`, waiting `first_wait_s`, then twice as long each time up to `longest_wait_s`."""

    attempts: int = 4
    first_wait_s: float = 0.25
    longest_wait_s: float = 5.0

    async def run(self, call: Callable[[], Awaitable[T]]) -> T:
        """The first answer of `call`; every other exception, and the last `Unavailable`, goes to the caller."""
        wait = self.first_wait_s
        for _ in range(self.attempts - 1):
            try:
                return await call()
            except Unavailable:
                await asyncio.sleep(wait)
                wait = min(2 * wait, self.longest_wait_s)
        return await call()


async def together(*calls: Awaitable[T]) -> list[T]:
    """Results in order. The first failure cancels the others and is raised as itself, not in a group."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
