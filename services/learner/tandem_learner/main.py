"""Start one rank of the learner in this process: rank 0 serves gRPC, the others follow it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch.distributed as dist

from tandem.config import Config
from tandem.rpc.alone import run_alone
from tandem.rpc.door import OPEN, Door
from tandem.rpc.ports import interface_towards
from tandem.rpc.server import RunningServer, serve
from tandem.runtime import end_process
from tandem.types import TandemError, UserError
from tandem_learner.channel import Channel
from tandem_learner.comm import close_comm, open_comm, open_store, place
from tandem_learner.core import LearnerCore
from tandem_learner.follower import Follower
from tandem_learner.leader import Leader
from tandem_learner.rank import Rank
from tandem_learner.servicer import SERVICE, LearnerServicer
from tandem_learner.watch import Watch, open_watch

LEAVE_S = 10.0  # for what is at work at the end


@dataclass(frozen=True)
class RunningLearner:
    """One rank at work. `address`: rank 0's host:port, else empty. `ended`: done once a follower ended."""

    address: str
    ended: asyncio.Future[None]
    stop: Callable[[], Awaitable[None]]


async def start(
    config: Config,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    rank: int = 0,
    world_size: int = 1,
    rendezvous: str = "",
    door: Door = OPEN,
) -> RunningLearner:
    """Load the model, meet the other ranks, and serve (rank 0) or follow (others).

    Args:
        rendezvous: host:port of rank 0's key-value store, the same for all ranks; not needed for one rank.
    Raises:
        UserError: the config, the model folder, the rank or the port cannot be.
        Unavailable: the ranks did not meet in time.
    """
    if not 0 <= rank < world_size:
        raise UserError(f"learner rank {rank} of world size {world_size} cannot be")
    thread = ThreadPoolExecutor(1, "learner")  # torch's grad mode and CUDA device are per thread: all work in this one
    core, watch = await asyncio.get_running_loop().run_in_executor(
        thread, partial(_open, config, rank, world_size, rendezvous)
    )
    timeout_s = config.learner.collective_timeout_s

    def connect() -> dist.Store:
        return open_store(rank, world_size, rendezvous, timeout_s)

    me, leave = Rank(core, thread, door), partial(_leave, watch, thread)
    if rank > 0:
        return _follower(Follower(me, Channel(connect, rank)), leave)
    channels = [Channel(connect, other) for other in range(1, world_size)]
    leader = Leader(me, channels, timeout_s, asyncio.wrap_future(watch.lost) if channels else None)
    return await _leader(leader, leave, host, port, door)


def _open(config: Config, rank: int, world_size: int, rendezvous: str) -> tuple[LearnerCore, Watch]:
    timeout_s = config.learner.collective_timeout_s
    store = open_store(rank, world_size, rendezvous, timeout_s, serve=True)
    host = place(rendezvous, world_size)[0] if world_size > 1 else ""
    if way := interface_towards(
        host or "127.0.0.1"
    ):  # else gloo listens where this machine's name leads: often loopback
        os.environ.setdefault("GLOO_SOCKET_IFNAME", way)
    watch = open_watch(rank, world_size, store, host, timeout_s=timeout_s, silence_s=config.learner.heartbeat_s)
    try:
        return LearnerCore(config, open_comm(config, rank, world_size, store)), watch
    except BaseException as problem:
        watch.close(f"learner rank {rank} could not start: {problem}")
        if isinstance(problem, TandemError):
            close_comm()
        raise


async def _leader(
    leader: Leader, leave: Callable[[Awaitable[None]], Awaitable[None]], host: str, port: int, door: Door
) -> RunningLearner:
    try:
        server: RunningServer = await serve(
            LearnerServicer(leader).register, [SERVICE], host=host, port=port, door=door
        )
    except TandemError:
        await leave(leader.stop())
        raise
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def stop() -> None:
        await server.stop()
        await leave(leader.stop())

    return RunningLearner(server.address, ended, stop)


def _follower(follower: Follower, leave: Callable[[Awaitable[None]], Awaitable[None]]) -> RunningLearner:
    task = asyncio.create_task(follower.follow())

    async def end() -> None:
        await follower.stop()
        await asyncio.wait({task})

    async def stop() -> None:
        await leave(end())

    return RunningLearner("", task, stop)


async def _leave(watch: Watch, thread: ThreadPoolExecutor, last: Awaitable[None]) -> None:
    """Do what is `last`, leave the process group, and let the thread end. A rank that cannot, as it hangs in a
    collective or on a disk, would hold up the end of its process for ever: that ends without it."""

    async def within(what: Awaitable[None]) -> None:
        task = asyncio.ensure_future(what)
        done, _ = await asyncio.wait({task}, timeout=LEAVE_S)
        if not done:
            end_process(f"learner: what was at work did not end within {LEAVE_S:g} s; this process ends without it")
        task.result()

    await within(last)
    await within(asyncio.to_thread(watch.close))
    leaving = thread.submit(close_comm)  # after what is at work there
    thread.shutdown(wait=False)
    await within(asyncio.wrap_future(leaving))


async def _start_alone(config: Config, *, rank: int, **given: Any) -> RunningLearner:
    return await start(config, rank=rank, world_size=config.learner.world_size, **given)


def main(arguments: Sequence[str] | None = None) -> int:
    """python -m tandem_learner RECIPE [key=value ...] [--port N] [--rank R --rendezvous HOST:PORT]; the exit code."""
    return run_alone(
        "learner",
        _start_alone,
        arguments,
        flags={
            "rank": (0, "of learner.world_size ranks, one process each; rank 0 serves"),
            "rendezvous": ("", "HOST:PORT of rank 0's store, the same for all ranks"),
        },
        ended=lambda learner: learner.ended,  # a follower whose rank 0 is gone says so
    )
