"""Who this process waits for, since when, and when anything last went on. Kept at every call; read when nothing moves.

with WAITS.on("learner 0 (generation 1)", "TrainStep v12"):
    ...
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from tandem.types import Role


@dataclass(frozen=True, slots=True)
class Wait:
    """One of them. `since` is when it began or last moved, by the clock of its `Waits`; `role` and `address`
    (host:port) are of a service that can be asked what it does."""

    whom: str
    what: str
    since: float
    role: Role | None = None
    address: str = ""


class Waits:
    """All that is waited for now. `clock` gives seconds. Threads may use it at once."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._open: dict[object, Wait] = {}
        self._moved, self._work = clock(), 0

    @contextmanager
    def on(self, whom: str, what: str, role: Role | None = None, address: str = "") -> Iterator[Callable[[], None]]:
        """The body waits. Calling what is yielded says that some of it has come; a body that ends well is progress,
        one that fails is none."""
        key = object()
        self._open[key] = Wait(whom, what, self._clock(), role, address)

        def moved() -> None:
            self.progressed()
            self._open[key] = replace(self._open[key], since=self._moved)

        try:
            yield moved
            self.progressed()
        finally:
            del self._open[key]

    def progressed(self) -> None:
        """Something went on."""
        self._moved = self._clock()
        self._work += 1

    @property
    def moved(self) -> float:
        """When something last went on, by the clock."""
        return self._moved

    @property
    def work(self) -> int:
        """How often something went on, about: another number says that something did."""
        return self._work

    @property
    def quiet_s(self) -> float:
        """Seconds since then."""
        return self._clock() - self._moved

    def now(self) -> tuple[Wait, ...]:
        """The longest first."""
        return tuple(sorted(self._open.copy().values(), key=lambda wait: wait.since))

    def lines(self) -> tuple[str, ...]:
        """As people read them, the longest first."""
        now = self._clock()
        return tuple(f"{wait.whom}: {wait.what}, for {now - wait.since:.0f} s" for wait in self.now())


WAITS = Waits()  # this process's
