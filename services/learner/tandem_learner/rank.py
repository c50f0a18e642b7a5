"""What one rank does on an order: the core's work in a thread of its own, the network on the event loop."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from typing import TypeVar

from tandem.rpc.clients import CheckpointClient
from tandem.storage import CHUNK_BYTES
from tandem.types import PublishKind, ShardRef, Unavailable
from tandem_learner.core import LearnerCore
from tandem_learner.orders import Answer, Export, Order, Restore, Train

T = TypeVar("T")


class Rank:
    """One rank. Its core is only ever touched by the one thread, so that orders cannot overlap."""

    def __init__(self, core: LearnerCore, thread: ThreadPoolExecutor) -> None:
        self.core = core
        self._thread = thread

    async def obey(self, order: Order) -> Answer:
        """Carry out an order; the answer is JSON: metrics, a shard's reference, or the version.

        Raises:
            Unavailable: torch gave up, on a lost peer or for lack of memory. And what the order's parts raise.
        """
        try:
            return await self._obey(order)
        except RuntimeError as problem:
            said, _, _ = str(problem).strip().partition("\n")
            what = f"{type(order).__name__} failed: {said}"
            raise Unavailable(f"learner rank {self.core.comm.rank}: {what}") from problem

    async def _obey(self, order: Order) -> Answer:
        if isinstance(order, Train):
            return await self._run(partial(self.core.train_step, order.groups))
        if isinstance(order, Export):
            return asdict(await self._export(order.kind, order.checkpoint_address))
        if isinstance(order, Restore):
            return {"version": await self._run(partial(self.core.restore, order.adapter, order.state))}
        return {}

    async def _export(self, kind: PublishKind, checkpoint_address: str) -> ShardRef:
        data = await self._run(partial(self.core.shard, kind))
        comm = self.core.comm
        digest = hashlib.sha256(data).hexdigest()
        ref = ShardRef(kind, self.core.version, comm.rank, comm.world_size, digest, len(data))
        client = CheckpointClient(checkpoint_address)
        try:
            return await client.put_shard(ref, _chunks(data))
        finally:
            await client.close()

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


def _chunks(data: bytes) -> Iterator[bytes]:
    return (data[at : at + CHUNK_BYTES] for at in range(0, len(data), CHUNK_BYTES))
