"""A scope entered and left off the event loop, whatever ends it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from tandem.runtime import in_threads, to_its_end

WITHIN_S = 30.0


class Scope:
    """Notes what becomes of it, and in which thread."""

    def __init__(self) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.go_on.set()
        self.ended: list[str] = []
        self.threads = set[int]()

    @contextmanager
    def entered(self) -> Iterator[int]:
        self.threads.add(threading.get_ident())
        self.begun.set()
        assert self.go_on.wait(WITHIN_S)
        try:
            yield 7
        except BaseException as problem:
            self.ended.append(type(problem).__name__)
            raise
        else:
            self.ended.append("whole")
        finally:
            self.threads.add(threading.get_ident())


async def test_enters_and_leaves_elsewhere() -> None:
    scope = Scope()
    async with in_threads(scope.entered()) as value:
        assert value == 7
    with pytest.raises(ValueError, match="mine"):
        async with in_threads(scope.entered()):
            raise ValueError("mine")
    assert scope.ended == ["whole", "ValueError"] and threading.get_ident() not in scope.threads


@pytest.mark.parametrize("inside", [True, False])
async def test_a_caller_that_is_cancelled_leaves_what_was_entered(inside: bool) -> None:
    scope = Scope()
    if not inside:
        scope.go_on.clear()
    within = asyncio.Event()

    async def use() -> None:
        async with in_threads(scope.entered()):
            within.set()
            await asyncio.Event().wait()

    using = asyncio.create_task(use())
    await (within.wait() if inside else asyncio.to_thread(scope.begun.wait, WITHIN_S))
    using.cancel()
    await asyncio.sleep(0)
    scope.go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await using
    assert scope.ended == ["CancelledError"]


async def test_what_refuses_entry_is_raised_as_itself() -> None:
    @contextmanager
    def refused() -> Iterator[None]:
        raise KeyError("no")
        yield

    with pytest.raises(KeyError, match="no"):
        async with in_threads(refused()):
            raise AssertionError("was entered")


async def test_one_that_is_cancelled_again_and_again_leaves_it_all_the_same() -> None:
    """Whoever runs the task may ask more than once, and all threads may be busy."""
    scope, busy = Scope(), threading.Event()
    within = asyncio.Event()

    async def use() -> None:
        async with in_threads(scope.entered()):
            within.set()
            await asyncio.Event().wait()

    using = asyncio.create_task(use())
    await within.wait()
    asyncio.get_running_loop().set_default_executor(pool := ThreadPoolExecutor(1))
    pool.submit(busy.wait, WITHIN_S)  # leaving has to wait for its turn
    for _ in range(3):
        using.cancel()
        await asyncio.sleep(0.01)
    busy.set()
    with pytest.raises(asyncio.CancelledError):
        await using
    assert scope.ended == ["CancelledError"]


async def test_work_is_waited_for_though_its_caller_is_cancelled() -> None:
    scope, done = Scope(), list[str]()

    def work() -> None:
        scope.begun.set()
        assert scope.go_on.wait(WITHIN_S)
        done.append("done")

    scope.go_on.clear()
    running = asyncio.create_task(to_its_end(work))
    await asyncio.to_thread(scope.begun.wait, WITHIN_S)
    for _ in range(2):
        running.cancel()
        await asyncio.sleep(0.01)
    assert not running.done()
    scope.go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert done == ["done"]
