"""A rank above 0: waits for orders, carries them out, answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from tandem.obs import get_logger
from tandem.obs.tracing import under
from tandem.types import PublishKind, TandemError, Unavailable
from tandem_learner.channel import RELEASED, Channel
from tandem_learner.orders import Answer, Export, Stop, decode_order, encode_answer, encode_problem, trace_of
from tandem_learner.rank import Rank

log = get_logger(__name__)


class Follower:
    """See the module."""

    def __init__(self, rank: Rank, channel: Channel) -> None:
        self.rank, self.channel = rank, channel
        self._number = 0
        self._stopped = self._over = False  # told to stop here; told by rank 0 that the run is over
        self._reports: set[asyncio.Task[None]] = set()

    async def follow(self) -> None:
        """Obey orders until the order to stop, or until `stop`.

        A failed order is answered, not raised, whatever the failure: rank 0 waits for an answer, and decides.

        Raises:
            Unavailable: rank 0 is gone.
        """
        try:
            await self._follow()
        finally:
            await self.rank.stop_sending(*PublishKind)
            await asyncio.gather(*self._reports)

    async def _follow(self) -> None:
        while not self._stopped:
            data = await asyncio.to_thread(self.channel.await_order, self._number)
            if data == RELEASED:
                break
            with under(trace_of(data)):
                answer = await self._in_bytes("order failed", self._obey(data))
            await asyncio.to_thread(self.channel.answer, self._number, answer)
            if self._over:
                return
            self._number += 1
        gone = encode_problem(Unavailable("was stopped"))  # rank 0 need not wait for its next answer
        await asyncio.to_thread(self.channel.answer, self._number, gone)

    async def _obey(self, data: bytes) -> Answer:
        order = decode_order(data)
        answer = await self.rank.obey(order)
        if isinstance(order, Export):
            report = asyncio.create_task(self._report(order))
            self._reports.add(report)
            report.add_done_callback(self._reports.discard)
        self._over = isinstance(order, Stop)
        return answer

    async def _report(self, order: Export) -> None:
        """Say what became of the shard, once that is known: rank 0 waits for it beside its orders."""
        said = await self._in_bytes(f"{order.kind} v{order.version} was not sent", self.rank.sent(order.kind))
        await asyncio.to_thread(self.channel.report, order.ticket, said)

    async def _in_bytes(self, what: str, work: Awaitable[Answer]) -> bytes:
        """What rank 0 is told: an answer, or whatever went wrong."""
        try:
            return encode_answer(await work)
        except Exception as problem:
            foreseen = isinstance(problem, TandemError)
            log.warning("rank %d: %s: %s", self.channel.rank, what, problem, exc_info=not foreseen)
            return encode_problem(problem)

    async def stop(self) -> None:
        """End the wait for orders, or once an order at work is carried out, follow no more."""
        self._stopped = True
        await asyncio.to_thread(self.channel.release_order, self._number)
