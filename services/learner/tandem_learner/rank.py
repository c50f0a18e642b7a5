"""What one rank does on an order: the core's work in a thread of its own, the network on the event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from typing import TypeVar

import torch

from tandem.obs import span
from tandem.obs.tracing import carried
from tandem.rpc.door import OPEN, Door
from tandem.types import PublishKind, StaleRequest, Unavailable
from tandem_learner.core import LearnerCore
from tandem_learner.host_copy import HostCopy
from tandem_learner.orders import Answer, Export, Order, Restore, Sent, Snapshot, Stop, Train
from tandem_learner.sending import send

T = TypeVar("T")
LESS_MEMORY = "lower learner.microbatch_tokens, or set learner.activation_checkpointing=true"


class Rank:
    """One rank. Its core is only ever touched by the one thread, so that orders cannot overlap.

    What an order to export begins goes on beside the orders that follow, from a copy that it has for itself.
    """

    def __init__(self, core: LearnerCore, thread: ThreadPoolExecutor, door: Door = OPEN) -> None:
        self.core = core
        self._door = door
        self._thread = thread
        self._copies: dict[PublishKind, HostCopy] = {}
        self._sending: dict[PublishKind, asyncio.Task[Sent]] = {}

    async def obey(self, order: Order) -> Answer:
        """Carry out an order; the answer is JSON: metrics, figures of a snapshot, or the version.

        Raises:
            Unavailable: torch gave up, on a lost peer or for lack of memory: started anew, the ranks may do it.
            And what the order's parts raise.
        """
        with self._named(order), span(type(order).__name__.lower(), self._about(order)):
            if isinstance(order, Train):
                metrics = await self._run(partial(self.core.train_step, order.groups))
                return {"metrics": metrics, "advantages": self.core.advantages}
            if isinstance(order, Snapshot):
                return await self._snapshot(order.kind)
            if isinstance(order, Export):
                await self._begin(order)
            if isinstance(order, Restore):
                self._copies.clear()  # of a version by this number, but not the one that it will be
                return {"version": await self._run(partial(self.core.restore, order.adapter, order.state))}
            if isinstance(order, Stop):
                await self.stop_sending(*PublishKind)
            return {}

    async def sent(self, kind: PublishKind) -> Answer:
        """What the latest order to export has sent, once that is done.

        Raises:
            Unavailable: it was stopped. And what `send` raises.
        """
        task = self._sending[kind]
        await asyncio.wait({task})
        if task.cancelled():
            raise Unavailable(f"learner rank {self.core.comm.rank}: sending its shard was stopped")
        return asdict(task.result())

    async def stop_sending(self, *kinds: PublishKind) -> None:
        """Give up what is still being sent of these kinds: of an export that rank 0 has given up, or at the end."""
        tasks = [self._sending[kind] for kind in kinds if kind in self._sending]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _snapshot(self, kind: PublishKind) -> Answer:
        await self.stop_sending(kind)
        self._copies.pop(kind, None)  # its memory is written over now
        began = time.perf_counter()
        copy = self._copies[kind] = await self._run(partial(self.core.snapshot, kind))
        return {"bytes": copy.data.nbytes, "seconds": time.perf_counter() - began}

    async def _begin(self, order: Export) -> None:
        await self.stop_sending(order.kind)
        copy = self._copies.get(order.kind)
        if copy is None or copy.meta.version != order.version:
            raise StaleRequest(f"learner rank {self.core.comm.rank} holds no {order.kind} v{order.version} to send")
        task = self._sending[order.kind] = asyncio.create_task(self._send(copy, order))
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody may ask: then it is no news

    async def _send(self, copy: HostCopy, order: Export) -> Sent:
        config = self.core.config
        shared = config.store_url if config.checkpoint.shards == "shared_fs" else ""
        about = {**self._about(order), "tandem.kind": str(order.kind), "tandem.bytes": copy.data.nbytes}
        with self._named(order), span("send", about):
            return await send(
                copy,
                order.to,
                config.learner.collective_timeout_s,
                resend_s=config.faults.resend_s,
                shared=shared,
                door=self._door,
            )

    @contextmanager
    def _named(self, order: Order) -> Iterator[None]:
        what = f"learner rank {self.core.comm.rank}: {type(order).__name__} failed"
        try:
            yield
        except (
            NotImplementedError,
            RecursionError,
        ):  # RuntimeErrors, but bugs: ranks started anew would have them, too
            raise
        except (torch.OutOfMemoryError, MemoryError) as problem:
            raise Unavailable(f"{what}: out of memory ({_first_line(problem)}); {LESS_MEMORY}") from problem
        except RuntimeError as problem:
            advice = f"; {LESS_MEMORY}" if "not enough memory" in str(problem) else ""  # of torch's CPU allocator
            raise Unavailable(f"{what}: {_first_line(problem)}{advice}") from problem

    def _about(self, order: Order) -> dict[str, int]:
        about = {"rl.rank": self.core.comm.rank, "rl.policy_version": self.core.version}
        if isinstance(order, Train):
            oldest = min((group.oldest_version for group in order.groups), default=self.core.version)
            about |= {"rl.groups": len(order.groups), "rl.staleness.max": self.core.version - oldest}
        return about

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, carried(work))


def _first_line(problem: BaseException) -> str:
    return str(problem).strip().partition("\n")[0]
