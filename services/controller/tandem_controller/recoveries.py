"""What has died in a run and what came of it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from tandem.obs import get_logger, trace
from tandem.obs.instruments import DEATHS, RECOVERY_TIME
from tandem.obs.metrics import count, observe
from tandem.types import Death, Recovery, TandemError
from tandem_controller.causes import cause_of
from tandem_controller.telling import recovered, told

log = get_logger(__name__)
REMEMBERED = 100


class Open:
    """A recovery under way."""

    action = ""

    def done(self, action: str) -> None:
        """It is over; what was done, as people read it."""
        self.action = action


class Recoveries:
    """The last ones, oldest first."""

    def __init__(self) -> None:
        self._all: dict[int, Recovery] = {}
        self._count = 0

    @property
    def all(self) -> tuple[Recovery, ...]:
        """Those that are still under way too."""
        return tuple(self._all.values())

    @contextmanager
    def of(self, death: Death) -> Iterator[Open]:
        """A recovery for as long as the body runs, which says `done`, or raises where nothing helps."""
        role = str(death.member.identity.role)
        count(DEATHS, member_role=role, cause=cause_of(death))
        at, began, number = time.time(), time.monotonic(), self._count
        self._count += 1
        self._all.pop(number - REMEMBERED, None)
        self._all[number] = Recovery(death, at, "", None)
        log.warning("%s", "\n".join(told(death, "another takes its place")))
        opened = Open()
        try:
            with trace("recovery", {"tandem.member": str(death.member.identity), "tandem.why": death.why}):
                yield opened
        except TandemError:
            log.error("%s", "\n".join(told(death)))
            raise
        if opened.action:
            seconds = time.monotonic() - began
            recovery = self._all[number] = Recovery(death, at, opened.action, seconds)
            observe(RECOVERY_TIME, seconds, member_role=role)
            log.warning("%s: %s", recovered(recovery), opened.action)
