"""Start the checkpoint manager: in a host's process, or alone from `python -m tandem_checkpoint_manager`."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from tandem.config import Config
from tandem.rpc.door import OPEN, Door
from tandem.rpc.server import RunningServer, listen
from tandem.storage import Lease, Retention, VersionStore, acquire
from tandem.types import UserError
from tandem_checkpoint_manager.core import CheckpointManager
from tandem_checkpoint_manager.mirror import SETTING, Mirror
from tandem_checkpoint_manager.servicer import SERVICE, CheckpointServicer


@dataclass(frozen=True, slots=True)
class CheckpointService:
    """A running checkpoint manager."""

    manager: CheckpointManager
    mirror: Mirror | None
    server: RunningServer
    ends: AsyncExitStack

    @property
    def address(self) -> str:
        """host:port."""
        return self.server.address

    async def stop(self) -> None:
        """Let running calls end, then stop."""
        await self.ends.aclose()


async def start(
    config: Config, *, host: str = "127.0.0.1", port: int = 0, rewind_to: int | None = None, door: Door = OPEN
) -> CheckpointService:
    """Serve the store at `config.checkpoint.url` (empty: `checkpoints` in the run directory).

    `rewind_to` is for a run that resumes from that version: adapters newer than it are removed first.

    Raises:
        UserError: the store cannot be written, has another manager or holds a state newer than `rewind_to`, or the
            port is taken.
    """
    # first: opening a store mends it, which a start without a port must not
    listener = await listen([SERVICE], host=host, port=port, door=door)
    async with AsyncExitStack() as ends:  # the last first; one that fails keeps none of the others from its end
        try:
            lease, manager = await asyncio.to_thread(_open, config.store_url, config, rewind_to)
        except BaseException:
            await listener.close()
            raise
        ends.push_async_callback(asyncio.to_thread, lease.release)
        ends.push_async_callback(asyncio.to_thread, manager.close)
        mirror = None
        if config.checkpoint.also_to:
            mirror = Mirror(
                manager.store,
                config.checkpoint.also_to,
                manager.retention,
                rewind_to=rewind_to,
                lease_s=config.checkpoint.lease_s,
            )
            ends.push_async_callback(asyncio.to_thread, mirror.close)
        running = await listener.serve(CheckpointServicer(manager, mirror).register)
        ends.push_async_callback(running.stop)
        return CheckpointService(manager, mirror, running, ends.pop_all())


def _open(url: str, config: Config, rewind_to: int | None) -> tuple[Lease, CheckpointManager]:
    also_to = config.checkpoint.also_to
    if also_to and VersionStore(also_to, setting=SETTING).blobs.url == VersionStore(url).blobs.url:
        raise UserError(f"{SETTING} {also_to} is checkpoint.url itself; choose another place for the copies")
    lease = acquire(url, config.checkpoint.lease_s)  # first: nobody else writes while this one clears up
    try:
        wanted = config.checkpoint
        retention = Retention(wanted.keep, wanted.keep_best, wanted.best_metric, wanted.keep_every)
        return lease, CheckpointManager(
            url, retention, rewind_to, Path(config.model.path), lease.check, config.run.name
        )
    except BaseException:
        lease.release()
        raise
