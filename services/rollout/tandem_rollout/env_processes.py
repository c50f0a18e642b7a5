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

from tandem.envs.protocol import Observation, StepResult
from tandem.runtime import deadline
from tandem.types import Unavailable
from tandem_rollout.environments import Background, EnvFailed, Episode

START_TIMEOUT_S = 120  # a Python process under load, before anything of the environment's own
LONGEST_LINE = 2**24  # bytes


class EnvProcesses:
    """Runs each episode's environment in a process, kept for the next episode."""

    def __init__(self, step_timeout_s: float) -> None:
        self._timeout = step_timeout_s
        self.background = Background()
        self._idle: list[_Worker] = []
        self._all: set[_Worker] = set()

    def open(self, env_id: str) -> Episode:
        """An episode in a new environment; nothing is built before its reset."""
        return _Remote(self, env_id)

    async def worker(self) -> _Worker:
        """One that does nothing yet. Raises EnvFailed where none will start."""
        if self._idle:
            return self._idle.pop()
        worker = await _Worker.start()
        self._all.add(worker)
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

    async def take_back(self, worker: _Worker) -> None:
        """Close its environment and keep it for the next episode; kill it where that does not work."""
        if not worker.busy:
            with suppress(EnvFailed):
                await self.ask(worker, "close")
                self._idle.append(worker)
                return
        await worker.end()
        self._all.discard(worker)

    async def close(self) -> None:
        """Kill them all."""
        await self.background.stop()
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
            self._processes.background.start(self._processes.take_back(self._worker))


class _Worker:
    """One process at the other end of a socket. `busy` stays True where an answer was given up.

    It is started by `subprocess`, not by the event loop: uvloop, which Ray's actors run on, forks, and a child forked
    beside gRPC's threads may die before it begins (1 in 16 here); `subprocess` uses vfork.
    """

    def __init__(
        self, process: subprocess.Popen[bytes], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.busy = False
        self._process = process
        self._reader = reader
        self._writer = writer

    @staticmethod
    async def start() -> _Worker:
        """Raises EnvFailed where it does not come up."""
        ours, its = socket.socketpair()
        with its:
            process = subprocess.Popen(  # noqa: ASYNC220 - returns once the program is loaded
                [sys.executable, "-m", "tandem_rollout.env_worker", str(os.getpid())],
                stdin=its.fileno(),
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
                start_new_session=True,  # what it starts in turn is killed with it
            )
        worker = _Worker(process, *await asyncio.open_connection(sock=ours, limit=LONGEST_LINE))
        try:
            async with deadline(START_TIMEOUT_S, "starting an environment's process"):
                await worker.read()
        except BaseException as problem:
            await worker.end()
            if isinstance(problem, Unavailable):
                raise EnvFailed(str(problem)) from problem
            raise
        return worker

    async def ask(self, request: dict[str, Any]) -> tuple[dict[str, Any], Observation]:
        """Send a request and read its answer. Raises EnvFailed where the process has ended."""
        self.busy = True
        with suppress(ConnectionError):  # it has ended: reading says so
            self._writer.write(json.dumps(request).encode() + b"\n")
            await self._writer.drain()
        answer = await self.read()
        self.busy = False
        return answer

    async def read(self) -> tuple[dict[str, Any], Observation]:
        """The next answer."""
        try:
            head = json.loads(await self._reader.readuntil(b"\n"))
            sizes = [(height, width, 3) for height, width in head["images"]]
            pixels = [await self._reader.readexactly(height * width * 3) for height, width, _ in sizes]
        except (asyncio.IncompleteReadError, ConnectionError) as problem:
            code = await asyncio.to_thread(self._process.wait)
            raise EnvFailed(f"the environment's process ended with code {code}") from problem
        except asyncio.LimitOverrunError as problem:
            raise EnvFailed(f"an answer of more than {LONGEST_LINE} bytes") from problem
        images = [np.frombuffer(data, np.uint8).reshape(size) for data, size in zip(pixels, sizes, strict=True)]
        return head, Observation(tuple(images), head["text"])

    async def end(self) -> None:
        """Kill it and what it started."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._writer.close()
        await asyncio.to_thread(self._process.wait)
