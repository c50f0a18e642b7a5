"""Environments off the event loop: whatever one does, generation goes on.

    episode --+-- EnvThreads: a thread for each call that is running. A call that hangs is left behind with its thread.
              +-- EnvProcesses (`env_processes.py`): a process for each running episode. One that hangs is killed.

Either way a call has a deadline, and what the environment answers is checked before it is believed.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
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


class Background:
    """Things to do some time; what becomes of them no longer matters."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()  # the event loop itself keeps no task alive

    def start(self, work: Coroutine[object, object, object]) -> None:
        """Begin at once."""

        async def quietly() -> None:
            with suppress(EnvFailed):
                await work

        task = asyncio.ensure_future(quietly())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """Cut short what is still going on."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class EnvThreads:
    """Runs environments on threads of this process, one for each call that is running: a slow call delays no other."""

    def __init__(self, make: Callable[[str], Env], step_timeout_s: float) -> None:
        self._make = make
        self._timeout = step_timeout_s
        self.background = Background()
        self._idle: list[_Thread] = []

    def open(self, env_id: str) -> Episode:
        """An episode in a new environment; nothing is built before its reset."""
        return _Threaded(self, self._make, env_id)

    async def run(self, what: str, call: Callable[..., T], *args: object) -> T:
        """The result of a call on some thread. Raises EnvFailed for its exception, or where it takes too long."""
        thread = self._idle.pop() if self._idle else _Thread()
        try:
            async with deadline(self._timeout, what):
                outcome = await thread.run(call, *args)
        except Unavailable as late:
            raise EnvFailed(str(late)) from late
        finally:
            if thread.busy:
                thread.end()  # once it comes back, if it ever does
            else:
                self._idle.append(thread)
        if isinstance(outcome, _Raised):
            raise EnvFailed(f"{what}: {in_words(outcome.problem)}") from outcome.problem
        return outcome

    async def close(self) -> None:
        """Let the threads go."""
        await self.background.stop()
        while self._idle:
            self._idle.pop().end()


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
        return await self._threads.run("step", self._play, text)

    def close(self) -> None:
        if self._env is not None:
            self._threads.background.start(self._threads.run("close", self._env.close))

    def _start(self, seed: int) -> tuple[str, Observation]:
        self._env = self._make(self._env_id)
        seen = self._env.reset(seed)
        return checked_instruction(self._env.instruction), checked_observation(seen)

    def _play(self, text: str) -> StepResult:
        assert self._env is not None, "reset comes first"
        return checked_result(self._env.step(text))


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
