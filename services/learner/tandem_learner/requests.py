"""Requests by id: the same id gets the same answer, also while the first one is still at work."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from tandem.types import Unavailable

T = TypeVar("T")
REMEMBERED = 64  # requests whose answers are kept
NAMED_S = 1.0  # from a failure to the word that a rank is lost: torch may notice first, and knows no name


@dataclass(frozen=True, slots=True)
class _Request:
    task: asyncio.Task[Any]
    given_up: asyncio.Future[str]


class Requests:
    """See the module. `lost` is done, with the reason, once a rank is lost: no request can then be carried out. None
    where there is no other rank."""

    def __init__(self, lost: asyncio.Future[str] | None) -> None:
        self._alone = lost is None
        self._lost: asyncio.Future[str] = lost or asyncio.get_running_loop().create_future()
        self._requests: dict[str, _Request] = {}

    def known(self, request_id: str) -> bool:
        """True where a request of this id was answered, or is at work."""
        return request_id in self._requests

    async def once(self, request_id: str, work: Callable[[], Awaitable[T]], lock: asyncio.Lock) -> T:
        """Run `work` once per request id, to its end even without its caller; failures are forgotten.

        Raises:
            Unavailable: a rank is lost, which is named; or the request was given up.
        """
        if request_id not in self._requests:
            given_up: asyncio.Future[str] = asyncio.get_running_loop().create_future()
            task = asyncio.create_task(self._cut_off(work, lock, given_up))
            self._requests[request_id] = _Request(task, given_up)

            def ended(task: asyncio.Task[Any]) -> None:
                if task.cancelled() or task.exception() is not None:
                    self._requests.pop(request_id, None)

            task.add_done_callback(ended)
            for old in list(self._requests)[:-REMEMBERED]:
                del self._requests[old]
        return await asyncio.shield(self._requests[request_id].task)

    def give_up(self, request_id: str, why: str) -> None:
        """Have a request fail as Unavailable; nothing happens to one that was answered."""
        request = self._requests.get(request_id)
        if request and not request.given_up.done():
            request.given_up.set_result(why)

    async def stop(self) -> None:
        """Give up all that are at work, and wait until they have ended."""
        for request_id in self._requests:
            self.give_up(request_id, "learner: was stopped")
        await asyncio.gather(*(request.task for request in self._requests.values()), return_exceptions=True)

    async def _cut_off(self, work: Callable[[], Awaitable[T]], lock: asyncio.Lock, given_up: asyncio.Future[str]) -> T:
        async def locked() -> T:
            async with lock:
                return await work()

        task = asyncio.create_task(locked())
        try:
            await asyncio.wait({task, self._lost, given_up}, return_when=asyncio.FIRST_COMPLETED)
            failure = task.exception() if task.done() else None
            if isinstance(failure, Unavailable) and not self._alone:
                others = {self._lost, given_up}
                await asyncio.wait(others, timeout=NAMED_S, return_when=asyncio.FIRST_COMPLETED)
            if task.done() and (failure is None or not self._lost.done()):
                return task.result()
            if self._lost.done():
                raise Unavailable(f"{self._lost.result()}; all ranks must be started again") from failure
            raise Unavailable(given_up.result())
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
