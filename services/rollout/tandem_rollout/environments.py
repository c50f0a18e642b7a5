"""Environments off the event loop: whatever one does, generation goes on.

    episode --+-- EnvThreads: a thread for each running episode. A call that hangs is left behind with its thread.
              +-- EnvProcesses (`env_processes.py`): a process for each running episode. One that hangs is killed.

Either way a call has a deadline, and what the environment answers is checked before it is believed.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Protocol, TypeVar

from tandem.envs.checks import checked_instruction, checked_observation, checked_result, in_words
from tandem.envs.protocol import Env, Observation, StepResult
from tandem.runtime import deadline
from tandem.types import Unavailable

T = TypeVar("T")


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

    async def close(self) -> None:
        """Let everything go."""
        ...


class EnvThreads:
    """Runs each episode's environment on a thread of its own, kept for the next episode: a slow one delays no other."""

    def __init__(self, make: Callable[[str], Env], step_timeout_s: float) -> None:
        self.make = make
        self.timeout = step_timeout_s
        self._idle: list[_Thread] = []
        self._all: set[_Thread] = set()

    def open(self, env_id: str) -> Episode:
        """An episode in a new environment; nothing is built before its reset."""
        return _Threaded(self, env_id)

    def take(self) -> _Thread:
        """One that does nothing yet."""
        if self._idle:
            return self._idle.pop()
        thread = _Thread()
        self._all.add(thread)
        return thread

    def take_back(self, thread: _Thread) -> None:
        """Keep it for the next episode."""
        if thread in self._all:
            self._idle.append(thread)

    async def close(self) -> None:
        """Let the threads go, each after what it has still to do."""
        for thread in self._all:
            thread.end()
        self._all.clear()
        self._idle.clear()


class _Threaded:
    """An `Episode` whose calls run on one thread, one after another: libraries that draw may want this."""

    def __init__(self, threads: EnvThreads, env_id: str) -> None:
        self._threads = threads
        self._env_id = env_id
        self._thread: _Thread | None = None
        self._env: Env | None = None

    async def reset(self, seed: int) -> tuple[str, Observation]:
        self._thread = self._threads.take()
        return await self._run("reset", self._start, seed)

    async def step(self, text: str) -> StepResult:
        return await self._run("step", self._play, text)

    def close(self) -> None:
        """After the call that may still be running. One that never returns is left behind with its thread."""
        if (thread := self._thread) is not None:
            thread.do(self._end).add_done_callback(lambda ended: self._threads.take_back(thread))

    async def _run(self, what: str, call: Callable[..., T], *args: object) -> T:
        """The result of a call. Raises EnvFailed for its exception, or where it takes too long."""
        assert self._thread is not None, "reset comes first"
        try:
            async with deadline(self._threads.timeout, what):
                outcome = await self._thread.do(call, *args)
        except Unavailable as late:
            raise EnvFailed(str(late)) from late
        if isinstance(outcome, _Raised):
            raise EnvFailed(f"{what}: {in_words(outcome.problem)}") from outcome.problem
        return outcome

    def _start(self, seed: int) -> tuple[str, Observation]:
        self._env = self._threads.make(self._env_id)
        seen = self._env.reset(seed)
        return checked_instruction(self._env.instruction), checked_observation(seen)

    def _play(self, text: str) -> StepResult:
        assert self._env is not None, "reset comes first"
        return checked_result(self._env.step(text))

    def _end(self) -> None:
        if self._env is not None:
            self._env.close()


@dataclass(frozen=True, slots=True)
class _Raised:
    """What a call raised, as a result."""

    problem: BaseException


class _Thread:
    """One thread that runs calls one after another. A daemon: a call that hangs does not hold up the process's end."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        threading.Thread(target=self._work, name="env", daemon=True).start()

    def do(self, call: Callable[..., T], *args: object) -> asyncio.Future[T | _Raised]:
        """The call's result, or what it raised, once those before it have returned."""
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[T | _Raised] = loop.create_future()

        def tell(result: T | _Raised) -> None:
            if not outcome.done():
                outcome.set_result(result)

        def work() -> None:
            try:
                result = call(*args)
            except BaseException as problem:  # noqa: BLE001 - the boundary: whatever leaves an environment is data
                result = _Raised(problem)
            with suppress(RuntimeError):  # the loop is closed: nobody waits any longer
                loop.call_soon_threadsafe(tell, result)

        self._calls.put(work)
        return outcome

    def end(self) -> None:
        """End after the calls that it has."""
        self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
