"""A service's own process, as the actor that hosts it sees it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock

from tandem.cluster.ends import End, in_words, oom_kills, oom_places, tail
from tandem.obs import get_logger
from tandem.rpc.hosted import Order

log = get_logger(__name__)
# One compute thread a process; see ARCHITECTURE: two were six times slower than one on two shared cores.
SERVICE_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "PYTHONUNBUFFERED": "1",
}
LAST_WORD_S = 5.0  # of a process that is gone: what it said is in the pipe


class ServiceProcess:
    """`python -m tandem.rpc.hosted`, at work on an order. What it prints goes to the file `log`.

    Make it in an event loop whose thread lives as long as this process: the kernel ends the service with that thread.
    """

    def __init__(self, order: Order, log: Path) -> None:
        self.log = log
        self.said: dict[str, str] = {}  # by it: an address, and an error where there was one
        read, write = os.pipe()
        with log.open("a") as file:
            file.write(f"--- {datetime.now(UTC).isoformat(timespec='seconds')} {log.stem}\n")
            file.flush()
            process = self._process = subprocess.Popen(
                [sys.executable, "-m", "tandem.rpc.hosted", str(log)],
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=subprocess.STDOUT,
                pass_fds=[write],
                start_new_session=True,  # a group of its own, killed whole
                env={**os.environ, **SERVICE_ENVIRONMENT, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        os.close(write)
        self.pid = process.pid
        self._oom_places = oom_places(self.pid)
        self._oom_kills = oom_kills(self._oom_places)
        assert process.stdin is not None
        with suppress(BrokenPipeError), process.stdin as stdin:  # where it is gone already, its end says why
            stdin.write(replace(order, report=write).as_json().encode() + b"\n")
        self._reaping = Lock()  # until it is reaped, its id is nobody else's
        self._status = asyncio.ensure_future(asyncio.to_thread(self._wait))
        self._words = os.fdopen(read)
        self._up: asyncio.Event = asyncio.Event()
        self._listening = asyncio.ensure_future(self._listen())

    async def up(self) -> bool:
        """Wait until the service has said something, or is gone; whether it serves."""
        ready = asyncio.ensure_future(self._up.wait())
        await asyncio.wait({ready, self._status}, return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        return "address" in self.said

    async def ended(self) -> End:
        """How it ended; answers only then. Children that outlived it are killed."""
        status = await asyncio.shield(self._status)
        counts = oom_kills(self._oom_places)
        await asyncio.wait({self._listening}, timeout=LAST_WORD_S)
        lines = tail(self.log)
        return End(self.said.get("message") or in_words(status, lines, self._oom_kills, counts), lines)

    async def stop(self, patience_s: float) -> None:
        """End it in order; after `patience_s` by force, with its children."""
        if patience_s:
            self._signal(os.kill, signal.SIGTERM)
            await asyncio.wait({self._status}, timeout=patience_s)
            if not self._status.done():
                log.warning("%s did not stop in %g s and is killed", self.log.stem, patience_s)
        self._signal(os.killpg, signal.SIGKILL)
        await asyncio.shield(self._status)

    async def _listen(self) -> None:
        while line := await asyncio.to_thread(self._words.readline):
            self.said |= json.loads(line)  # an error may follow an address before anybody looks
            self._up.set()
        self._words.close()

    def _wait(self) -> int:
        """Its status, once it is gone; its children are killed before its id, their group's, is free."""
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        with self._reaping:
            os.killpg(self.pid, signal.SIGKILL)
            return self._process.wait()

    def _signal(self, send: Callable[[int, int], None], number: signal.Signals) -> None:
        with self._reaping:
            if self._process.returncode is None:
                send(self.pid, number)
