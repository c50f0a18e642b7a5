"""Trying again what failed because somebody was not there."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tandem.types import TandemError, Unavailable

T = TypeVar("T")


async def retry(
    work: Callable[[], Awaitable[T]],
    *,
    for_s: float,
    attempts: int | None = None,
    first_s: float = 0.2,
    longest_s: float = 5.0,
    on: type[TandemError] | tuple[type[TandemError], ...] = Unavailable,
) -> T:
    """Do `work`, and where it raises `on` again: no attempt begins later than `for_s` seconds after the first failure.

    Between two attempts lies a random time of up to `first_s`, then up to twice that, and so on up to `longest_s`
    (Brooker, "Exponential Backoff And Jitter", 2015), so that those who lost the same peer do not come back in step.
    `work` has a deadline of its own and is one intention: a mutating call passes the same request id each time.

    Args:
        attempts: the most there are, with the first; None: as many as the time allows.
    Raises:
        What the last attempt raised.
    """
    until, most, tried = float("inf"), first_s, 0
    while True:
        tried += 1
        try:
            return await work()
        except on:
            wait = random.uniform(0, most)
            until = min(until, time.monotonic() + for_s)
            if tried == attempts or time.monotonic() + wait > until:
                raise
        await asyncio.sleep(wait)
        most = min(2 * most, longest_s)
