"""A rank above 0: waits for orders, carries them out, answers."""

from __future__ import annotations

import asyncio

from tandem.obs import get_logger
from tandem.types import TandemError
from tandem_learner.channel import Channel
from tandem_learner.orders import Stop, decode_order, encode_answer, encode_problem
from tandem_learner.rank import Rank

log = get_logger(__name__)


async def follow(rank: Rank, channel: Channel) -> None:
    """Obey orders until the order to stop.

    A failed order is answered, not raised: rank 0 decides. What torch raises (a lost peer, no memory) is
    RuntimeError.

    Raises:
        Unavailable: rank 0 is gone.
    """
    number, me = 0, rank.core.comm.rank
    while True:
        data = await asyncio.to_thread(channel.poll_order, number)
        if data is None:
            continue
        order = decode_order(data)
        if isinstance(order, Stop):
            await asyncio.to_thread(channel.answer, number, me, encode_answer({}))
            return
        try:
            answer = encode_answer(await rank.obey(order))
        except (TandemError, RuntimeError, ValueError, OSError) as problem:
            log.warning("rank %d: %s failed: %s", me, type(order).__name__, problem)
            answer = encode_problem(problem)
        await asyncio.to_thread(channel.answer, number, me, answer)
        number += 1
