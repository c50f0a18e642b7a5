"""A deployment for the event loop: its calls wait in threads of their own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import ParamSpec, TypeVar

from tandem.cluster import Deployment
from tandem.config import Config
from tandem.obs import get_logger
from tandem.obs.tracing import carried
from tandem.rpc.clients import CheckpointClient, LearnerClient, RolloutClient
from tandem.rpc.door import Door
from tandem.runtime import WAITS, beside, until
from tandem.types import Death, Identity, Member, TandemError

log = get_logger(__name__)
P = ParamSpec("P")
T = TypeVar("T")
NEWS_S = 3.0  # how long the news of a death may lag behind a call that fails for it
WATCH_S = 0.5  # how long a look for deaths takes at most
STARTS_AT_ONCE = 64


class Hosts:
    """Who runs where, and how to reach them."""

    def __init__(self, deployment: Deployment, config: Config, door: Door) -> None:
        self.deployment, self.config, self.door = deployment, config, door
        self.since: dict[Identity, float] = {}  # when each was first reached, Unix seconds
        self._heard: dict[Identity, Death] = {}
        self._threads = ThreadPoolExecutor(STARTS_AT_ONCE, "hosts")

    @asynccontextmanager
    async def deaths(self, heard: Callable[[Death], None]) -> AsyncIterator[None]:
        """Tell of every death for as long as the body runs. No call is possible after it."""

        async def listen() -> None:
            while True:
                if death := await self._in_thread(self.deployment.wait_death, WATCH_S):
                    self._heard[death.member.identity] = death
                    heard(death)

        def failed(problem: BaseException) -> None:
            log.error("deaths are not heard of any more, only found out: %s", problem, exc_info=problem)

        try:
            async with beside(listen(), failed):
                yield
        finally:
            self._threads.shutdown(wait=False, cancel_futures=True)

    async def death_of(self, member: Member, problem: TandemError) -> Death:
        """Why a member died to which a call has failed: as Ray tells of it soon after; else it is that it fails."""

        async def told() -> Death | None:
            return self._heard.get(member.identity)

        return await until(told, every_s=0.05, for_s=NEWS_S) or Death(member, f"calls of it fail: {problem}")

    async def call(self, method: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """One of the deployment's methods, which block."""
        with WAITS.on("Ray", method.__name__.replace("_", " ")):
            return await self._in_thread(method, *args, **kwargs)

    async def _in_thread(self, method: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, carried(method, *args, **kwargs))

    def rollout(self, member: Member) -> RolloutClient:
        """A client of a replica."""
        return self._client(RolloutClient, member)

    def learner(self, member: Member) -> LearnerClient:
        """A client of rank 0."""
        return self._client(LearnerClient, member)

    def checkpoints(self, member: Member) -> CheckpointClient:
        """A client of the checkpoint manager."""
        return self._client(CheckpointClient, member)

    def _client(self, kind: Callable[[str, Door, Identity], T], member: Member) -> T:
        self.since[member.identity] = time.time()
        return kind(member.address, self.door, member.identity)
