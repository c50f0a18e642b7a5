"""Saves of the training state beside the steps that follow, one at a time.

    settle (the save before) -> snapshot, all that training stands still for -> export and publish, in the background

Weights are published before the state that needs them, and the state's publication is what makes a save: `--resume`
never sees half of one. What a save took stands in the next line of metrics.jsonl.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from tandem.config import CheckpointConfig
from tandem.obs import get_logger, span
from tandem.obs.instruments import SAVE_FAILURES, SAVE_STALL, SAVE_TIME
from tandem.obs.metrics import count, observe
from tandem.obs.tracing import traced
from tandem.runtime import reach
from tandem.storage.retention import LEAST
from tandem.types import PublishKind, Role, StaleRequest, TandemError
from tandem_controller.services import Services, publish

log = get_logger(__name__)


async def _nothing() -> None:
    return


class Saver:
    """`saved` is the newest version known to be saved; `lost` is true once a save ended with the learner that held its
    copy: the next version is saved instead."""

    def __init__(self, services: Services, config: CheckpointConfig, saved: int) -> None:
        self.saved, self.lost = saved, False
        self._services, self._config = services, config
        self._version = saved  # the newest that is saved, or being saved
        self._task: asyncio.Task[None] | None = None
        self._problem: TandemError | None = None
        self._figures: dict[str, float] = {}

    async def begin(
        self,
        version: int,
        metadata: Callable[[], str],
        *kinds: PublishKind,
        first: Callable[[], Awaitable[None]] = _nothing,
        then: Callable[[], Awaitable[None]] = _nothing,
    ) -> None:
        """Save weights of some kinds and the state of the version that the learner is at, once the save before is over.

        Args:
            metadata: makes the state's metadata, in a thread and perhaps after later steps.
            first: awaited once the save before is over.
            then: awaited once it is saved.
        Raises:
            TandemError: as `check`, of the save before or of this one's snapshot.
        """
        with span("save", {"rl.policy_version": version}):
            await self.settle()
            await first()
            self.lost = False
            wanted = (*kinds, PublishKind.STATE)
            try:
                with self._noted("seconds/snapshot"):
                    snapshot = partial(self._snapshot, version, wanted)
                    size = await self._services.keeper.keep(snapshot, blames=Role.LEARNER)
            except TandemError as problem:
                self._tell(version, problem)
                self.check()
                return
            reach("controller/snapshot/done")
            self._version = version
            self._task = asyncio.create_task(self._save(version, metadata, wanted, size, then))

    async def settle(self) -> None:
        """Wait for the save that is at work. Raises as `check`."""
        await self._over()
        self.check()

    async def through(self, version: int, begin: Callable[[], Awaitable[None]]) -> None:
        """Wait until the version that the learner is at is saved; `begin` begins that where it has not been begun."""
        await self.settle()
        if self.saved != version:
            await begin()
            await self.settle()

    async def make_way(self, version: int) -> None:
        """Wait, if need be, until weights of `version` may be published: were they kept instead of those of a version
        whose state is still on its way, that state could not be resumed."""
        if self._task and version - self._version >= max(self._config.keep, LEAST[PublishKind.ADAPTER]):
            await self._over()

    def check(self) -> None:
        """Raise what became of a save that has failed, where `checkpoint.on_failure` is to stop; once."""
        problem, self._problem = self._problem, None
        if problem and self._config.on_failure == "stop":
            raise problem

    def figures(self) -> dict[str, float]:
        """What is new since the last call: seconds waited and spent in the loop, and of saves that ended beside it
        version, seconds from snapshot to publication, and bytes."""
        figures, self._figures = self._figures, {}
        return figures

    async def _snapshot(self, version: int, kinds: Sequence[PublishKind]) -> int:
        return sum([(await self._services.learner.snapshot(version, kind)).size for kind in kinds])

    async def _over(self) -> None:
        task, self._task = self._task, None
        if task:
            with self._noted("seconds/save_wait"), span("wait for save", on=traced()):
                await task

    async def _save(
        self,
        version: int,
        metadata: Callable[[], str],
        kinds: tuple[PublishKind, ...],
        size: int,
        then: Callable[[], Awaitable[None]],
    ) -> None:
        began = time.perf_counter()
        try:
            with span("publish what was saved", {"rl.policy_version": version}):
                described = await asyncio.to_thread(metadata)
                for kind in kinds:
                    await publish(self._services, kind, version, described if kind is PublishKind.STATE else "{}")
            self.saved = version
            await self._services.keeper.keep(then)  # a learner that is being brought back may need what this drops
        except StaleRequest as problem:
            self._version, self.lost = self.saved, True
            log.warning("version %d is not saved, a later one will be: %s", version, problem)
            return
        except TandemError as problem:
            self._tell(version, problem)
            return
        seconds = time.perf_counter() - began
        observe(SAVE_TIME, seconds)
        self._figures |= {"save/version": version, "save/seconds": seconds, "save/bytes": size}

    def _tell(self, version: int, problem: TandemError) -> None:
        self._problem = problem
        count(SAVE_FAILURES)
        goes = "ends" if self._config.on_failure == "stop" else "goes on"
        log.warning("version %d could not be saved, the run %s: %s", version, goes, problem)

    @contextmanager
    def _noted(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            seconds = time.perf_counter() - began
            self._figures[name] = self._figures.get(name, 0.0) + seconds
            observe(SAVE_STALL, seconds)
