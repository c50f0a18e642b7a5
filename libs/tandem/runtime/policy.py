"""Deadlines, and work done side by side."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
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


async def together(*calls: Awaitable[T]) -> list[T]:
    """Results in order. The first failure cancels the others and is raised as itself, not in a group."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
