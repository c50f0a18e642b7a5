"""Environments in processes of their own: one that hangs is killed, one that crashes takes nothing with it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from typing import Any

import numpy as np

from tandem.envs.checks import in_words
from tandem.envs.protocol import Observation, StepResult
from tandem.runtime import deadline
from tandem.types import Unavailable
from tandem_rollout.environments import EnvFailed, Episode

START_TIMEOUT_S = 120  # a Python process under load, before anything of the environment's own
END_TIMEOUT_S = 10  # a process killed: none but the kernel can make it take longer
LONGEST_LINE = 2**24  # bytes


class EnvProcesses:
    """Runs each episode's environment in a process, kept for the next episode."""

    def __init__(self, step_timeout_s: float) -> None:
        self._timeout = step_timeout_s
        self._releasing: set[asyncio.Task[None]] = set()  # the event loop itself keeps no task alive
        self._idle: list[_Worker] = []
        self._all: set[_Worker] = set()

    def open(self, env_id: str) -> Episode:
        """An episode in a new environment; nothing is built before its reset."""
        return _Remote(self, env_id)

    async def worker(self) -> _Worker:
        """One that does nothing yet. Raises EnvFailed where none will start."""
        while self._idle:
            worker = self._idle.pop()
            if not worker.ended:
                return worker
            await self._let_go(worker)
        worker = _Worker()
        self._all.add(worker)  # at once: `close` ends it, whatever it is about to do
        try:
            await worker.start()
        except BaseException:
            await self._let_go(worker)
            raise
        return worker

    async def ask(self, worker: _Worker, what: str, **more: Any) -> tuple[dict[str, Any], Observation]:
        """A worker's answer. Raises EnvFailed for an error, its end, or where it takes too long."""
        try:
            async with deadline(self._timeout, what):
                head, seen = await worker.ask({"do": what, **more})
        except Unavailable as late:
            raise EnvFailed(str(late)) from late
        if "error" in head:
            raise EnvFailed(f"{what}: {head['error']}")
        return head, seen

    def release(self, worker: _Worker) -> None:
        """Close its environment, in the background, and keep it for the next episode; kill it where that fails."""
        task = asyncio.ensure_future(self._take_back(worker))
        self._releasing.add(task)
        task.add_done_callback(self._releasing.discard)

    async def _take_back(self, worker: _Worker) -> None:
        if not worker.busy:
            with suppress(EnvFailed):
                await self.ask(worker, "close")
                self._idle.append(worker)
                return
        await self._let_go(worker)

    async def _let_go(self, worker: _Worker) -> None:
        await worker.end()
        self._all.discard(worker)

    async def close(self) -> None:
        """Kill them all."""
        for task in (releasing := list(self._releasing)):
            task.cancel()
        await asyncio.gather(*releasing, return_exceptions=True)
        self._idle.clear()
        await asyncio.gather(*(worker.end() for worker in self._all))
        self._all.clear()


class _Remote:
    """An `Episode` in a worker."""

    def __init__(self, processes: EnvProcesses, env_id: str) -> None:
        self._processes = processes
        self._env_id = env_id
        self._worker: _Worker | None = None

    async def reset(self, seed: int) -> tuple[str, Observation]:
        self._worker = await self._processes.worker()
        head, seen = await self._processes.ask(self._worker, "reset", env=self._env_id, seed=seed)
        return head["instruction"], seen

    async def step(self, text: str) -> StepResult:
        assert self._worker is not None, "reset comes first"
        head, seen = await self._processes.ask(self._worker, "step", text=text)
        return StepResult(seen, head["reward"], head["terminated"], head["task_reward"], head["parsed"], head["info"])

    def close(self) -> None:
        if self._worker is not None:
            self._processes.release(self._worker)


class _Worker:
    """One process at the other end of a socket. `busy` stays True where an answer was given up.

    It is started by `subprocess`, not by the event loop: uvloop, which Ray's actors run on, forks, and a child forked
    beside gRPC's threads may die before it begins (1 in 16 here); `subprocess` uses vfork.
    """

    def __init__(self) -> None:
        self.busy = False
        self._writer: asyncio.StreamWriter | None = None
        self._connection, its = socket.socketpair()
        with its:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tandem_rollout.env_worker", str(os.getpid())],
                stdin=its.fileno(),
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
                start_new_session=True,  # what it starts in turn is killed with it
            )

    async def start(self) -> None:
        """Raises EnvFailed where it does not come up."""
        self._reader, self._writer = await asyncio.open_connection(sock=self._connection, limit=LONGEST_LINE)
        try:
            async with deadline(START_TIMEOUT_S, "starting an environment's process"):
                await self.read()
        except Unavailable as late:
            raise EnvFailed(str(late)) from late

    @property
    def ended(self) -> bool:
        """Whether nothing will answer any more."""
        return self._reader.at_eof()

    async def ask(self, request: dict[str, Any]) -> tuple[dict[str, Any], Observation]:
        """Send a request and read its answer. Raises EnvFailed where the process has ended."""
        assert self._writer is not None, "start comes first"
        self.busy = True
        with suppress(ConnectionError):  # it has ended: reading says so
            self._writer.write(json.dumps(request).encode() + b"\n")
            await self._writer.drain()
        answer = await self.read()
        self.busy = False
        return answer

    async def read(self) -> tuple[dict[str, Any], Observation]:
        """The next answer. Raises EnvFailed where there is none, or none that can be read."""
        try:
            head = json.loads(await self._reader.readuntil(b"\n"))
            sizes = [(height, width, 3) for height, width in head["images"]]
            pixels = [await self._reader.readexactly(height * width * 3) for height, width, _ in sizes]
            images = [np.frombuffer(data, np.uint8).reshape(size) for data, size in zip(pixels, sizes, strict=True)]
            return head, Observation(tuple(images), head["text"])
        except (asyncio.IncompleteReadError, ConnectionError) as problem:
            await self.end()
            raise EnvFailed(f"the environment's process ended with code {self._process.returncode}") from problem
        except asyncio.LimitOverrunError as problem:
            raise EnvFailed(f"an answer of more than {LONGEST_LINE} bytes") from problem
        except (ValueError, KeyError, TypeError) as problem:  # the environment has found the socket
            raise EnvFailed(f"an answer that cannot be read: {in_words(problem)}") from problem

    async def end(self) -> None:
        """Kill it and what it started, unless that took a session of its own.

        Its exit code is asked for afterwards only: until then its number, which is the group's, cannot be another's.
        """
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        if self._writer is not None:
            self._writer.close()
        with suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(self._process.wait, END_TIMEOUT_S)
