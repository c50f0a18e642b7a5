"""Work that goes on beside the rest, on a thread of its own, and waiting for something to change."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Event, Thread
from typing import TypeVar

T = TypeVar("T")


class Background:
    """A thread that calls `work` again and again. It answers how many seconds to wait then; None: until woken.

    `work` deals with its own failures: what it lets through ends the thread.
    """

    def __init__(self, name: str, work: Callable[[], float | None]) -> None:
        """Nothing runs before `start`: what `work` uses, this object among it, is whole by then."""
        self._work = work
        self._wake = Event()
        self._stopping = Event()
        self._thread = Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Call `work` for the first time, and from then on."""
        self._thread.start()

    @property
    def stopping(self) -> bool:
        """Whether `stop` was called: work that takes long looks at it."""
        return self._stopping.is_set()

    @property
    def alive(self) -> bool:
        """False once `stop` was called or `work` has let something through."""
        return self._thread.is_alive()

    def wake(self) -> None:
        """End the wait: `work` runs once more, from its start."""
        self._wake.set()

    def stop(self) -> None:
        """Wait until the call that runs has ended; none follows."""
        self._stopping.set()
        self._wake.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            self._wake.clear()  # before the look at `stopping`: a stop after that look wakes the wait below
            if self.stopping:
                return
            self._wake.wait(self._work())


def poll(ask: Callable[[], T | None], *, every_s: float, for_s: float) -> T | None:
    """Ask until the answer is not None; None where it still is after `for_s` seconds, by this machine's own clock."""
    until = time.monotonic() + for_s
    while (answer := ask()) is None and (left := until - time.monotonic()) > 0:
        time.sleep(min(every_s, left))
    return answer
