"""A rank above 0: waits for orders, carries them out, answers."""

from __future__ import annotations

import asyncio

from tandem.obs import get_logger
from tandem.types import TandemError, Unavailable
from tandem_learner.channel import RELEASED, Channel
from tandem_learner.orders import Stop, decode_order, encode_answer, encode_problem
from tandem_learner.rank import Rank

log = get_logger(__name__)


class Follower:
    """See the module."""

    def __init__(self, rank: Rank, channel: Channel) -> None:
        self.rank, self.channel = rank, channel
        self._number = 0
        self._stopped = False

    async def follow(self) -> None:
        """Obey orders until the order to stop, or until `stop`.

        A failed order is answered, not raised, whatever the failure: rank 0 waits for an answer, and decides.

        Raises:
            Unavailable: rank 0 is gone.
        """
        while not self._stopped:
            data = await asyncio.to_thread(self.channel.await_order, self._number)
            if data == RELEASED:
                break
            answer, last = await self._obey(data)
            await asyncio.to_thread(self.channel.answer, self._number, answer)
            if last:
                return
            self._number += 1
        gone = encode_problem(Unavailable("was stopped"))  # rank 0 need not wait for its next answer
        await asyncio.to_thread(self.channel.answer, self._number, gone)

    async def _obey(self, data: bytes) -> tuple[bytes, bool]:
        """The answer to an order, and whether that was the order to stop."""
        try:
            order = decode_order(data)
            return encode_answer(await self.rank.obey(order)), isinstance(order, Stop)
        except Exception as problem:
            foreseen = isinstance(problem, TandemError)
            log.warning("rank %d: order failed: %s", self.channel.rank, problem, exc_info=not foreseen)
            return encode_problem(problem), False

    async def stop(self) -> None:
        """End the wait for orders, or once an order at work is carried out, follow no more."""
        self._stopped = True
        await asyncio.to_thread(self.channel.release_order, self._number)
