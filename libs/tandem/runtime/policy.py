"""Deadlines, and work done side by side or in threads."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Any, TypeVar

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


async def pause(seconds: float) -> None:
    """Let time pass."""
    await asyncio.sleep(seconds)


async def until(ask: Callable[[], Awaitable[T | None]], *, every_s: float, for_s: float) -> T | None:
    """Ask until the answer is not None; None where it still is after `for_s` seconds."""
    end = time.monotonic() + for_s
    while (answer := await ask()) is None and (left := end - time.monotonic()) > 0:  # noqa: ASYNC110 - of another process
        await asyncio.sleep(min(every_s, left))
    return answer


def later(seconds: float, do: Callable[[], None]) -> asyncio.TimerHandle:
    """Have the event loop call `do` after so many seconds, unless what is returned is cancelled before."""
    return asyncio.get_running_loop().call_later(seconds, do)


async def together(*calls: Awaitable[T]) -> list[T]:
    """Results in order. The first failure cancels the others and is raised as itself, not in a group."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def to_its_end(work: Callable[..., T], *args: object) -> T:
    """Do it in a thread. A caller that is cancelled, be it several times, is so once the work has ended."""
    working = asyncio.ensure_future(asyncio.to_thread(work, *args))
    cancelled: asyncio.CancelledError | None = None
    while not working.done():
        try:
            await asyncio.wait({working})
        except asyncio.CancelledError as problem:
            cancelled = problem
    if cancelled:
        working.exception()  # it is of no interest now
        raise cancelled
    return working.result()


@asynccontextmanager
async def in_threads(scope: AbstractContextManager[T]) -> AsyncIterator[T]:
    """Enter and leave a scope in threads, off the event loop: it works on files, or waits for locks.

    What is entered is left, also where the caller is cancelled before it is told, and however often.
    """
    inside = list[T]()
    try:
        await to_its_end(lambda: inside.append(scope.__enter__()))
    except asyncio.CancelledError:
        if inside:
            await to_its_end(scope.__exit__, *sys.exc_info())
        raise
    try:
        yield inside[0]
    except BaseException:
        if not await to_its_end(scope.__exit__, *sys.exc_info()):
            raise
    else:
        await to_its_end(scope.__exit__, None, None, None)


@asynccontextmanager
async def beside(work: Coroutine[Any, Any, object], failed: Callable[[BaseException], None]) -> AsyncIterator[None]:
    """Work that goes on while the body runs, and is cancelled at its end. What ends it before is told to `failed`, and
    is no end of the body."""

    def ended(task: asyncio.Task[object]) -> None:
        if not task.cancelled() and (problem := task.exception()):
            failed(problem)

    task = asyncio.create_task(work)
    task.add_done_callback(ended)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})
