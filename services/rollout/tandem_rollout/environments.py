"""Environments off the event loop: whatever one does, generation goes on.

A call runs on one of a few threads and has a deadline. A thread whose call hangs is given up, another takes its place.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Protocol, TypeVar

from tandem.envs.protocol import Env, Observation, StepResult
from tandem.runtime import deadline
from tandem.types import Unavailable

T = TypeVar("T")
THREADS = 8  # environments may block (a browser, a simulator); a grid maze hardly occupies one


class EnvFailed(Exception):
    """The environment raised, hung or answered nonsense: the message says which."""


class Episode(Protocol):
    """One episode in one environment. Every coroutine raises EnvFailed for whatever goes wrong inside."""

    async def reset(self, seed: int) -> tuple[str, Observation]:
        """Start; returns the instruction and what is seen first."""
        ...

    async def step(self, text: str) -> StepResult:
        """Play one turn."""
        ...

    def close(self) -> None:
        """Release the environment in the background; what it says then no longer matters."""
        ...


class Environments(Protocol):
    """Where episodes' environments live."""

    def open(self, env_id: str) -> Episode:
        """An episode in a new environment; nothing is built before its reset."""
        ...

    def close(self) -> None:
        """Let everything go."""
        ...


class EnvThreads:
    """Runs environments on threads of this process. A hung call is left behind with its thread: it cannot be killed."""

    def __init__(self, make: Callable[[str], Env], step_timeout_s: float, threads: int = THREADS) -> None:
        self._make = make
        self._timeout = step_timeout_s
        self._room = asyncio.Semaphore(threads)
        self._idle: list[_Thread] = []
        self._closing: set[asyncio.Task[None]] = set()

    def open(self, env_id: str) -> Episode:
        """An episode in a new environment; nothing is built before its reset."""
        return _Threaded(self, self._make, env_id)

    async def run(self, what: str, call: Callable[..., T], *args: object) -> T:
        """The result of a call on some thread. Raises EnvFailed for its exception, or where it takes too long."""
        try:
            async with self._thread() as thread, deadline(self._timeout, what):
                outcome = await thread.run(call, *args)
        except Unavailable as late:
            raise EnvFailed(str(late)) from late
        if isinstance(outcome, _Raised):
            problem = outcome.problem
            raise EnvFailed(f"{what}: {type(problem).__name__}: {problem}") from problem
        return outcome

    def release(self, env: Env) -> None:
        """Close an environment in the background; what it says then no longer matters."""
        task = asyncio.ensure_future(self.run("close", env.close))
        self._closing.add(task)
        task.add_done_callback(self._closed)

    def _closed(self, task: asyncio.Task[None]) -> None:
        self._closing.discard(task)
        if not task.cancelled():
            task.exception()

    def close(self) -> None:
        """Let the threads go."""
        while self._idle:
            self._idle.pop().end()

    @asynccontextmanager
    async def _thread(self) -> AsyncIterator[_Thread]:
        async with self._room:
            thread = self._idle.pop() if self._idle else _Thread()
            try:
                yield thread
            finally:
                if thread.busy:
                    thread.end()
                else:
                    self._idle.append(thread)


class _Threaded:
    """An `Episode` whose calls run on threads."""

    def __init__(self, threads: EnvThreads, make: Callable[[str], Env], env_id: str) -> None:
        self._threads = threads
        self._make = make
        self._env_id = env_id
        self._env: Env | None = None

    async def reset(self, seed: int) -> tuple[str, Observation]:
        return await self._threads.run("reset", self._start, seed)

    async def step(self, text: str) -> StepResult:
        assert self._env is not None, "reset comes first"
        return await self._threads.run("step", self._env.step, text)

    def close(self) -> None:
        if self._env is not None:
            self._threads.release(self._env)

    def _start(self, seed: int) -> tuple[str, Observation]:
        self._env = self._make(self._env_id)
        seen = self._env.reset(seed)
        return self._env.instruction, seen


@dataclass(frozen=True, slots=True)
class _Raised:
    """What a call raised, as a result."""

    problem: BaseException


class _Thread:
    """One thread that runs calls one after another. A daemon: a call that hangs does not hold up the process's end."""

    def __init__(self) -> None:
        self.busy = False
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        threading.Thread(target=self._work, name="env", daemon=True).start()

    async def run(self, call: Callable[..., T], *args: object) -> T | _Raised:
        """The call's result, or what it raised. Leaves the thread busy where the caller is cut off."""
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[T | _Raised] = loop.create_future()

        def tell(result: T | _Raised) -> None:
            self.busy = False
            if not outcome.done():
                outcome.set_result(result)

        def work() -> None:
            try:
                result = call(*args)
            except BaseException as problem:  # noqa: BLE001 - the boundary: whatever leaves an environment is data
                result = _Raised(problem)
            with suppress(RuntimeError):  # the loop is closed: nobody waits any longer
                loop.call_soon_threadsafe(tell, result)

        self.busy = True
        self._calls.put(work)
        return await outcome

    def end(self) -> None:
        """End after the present call."""
        self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
