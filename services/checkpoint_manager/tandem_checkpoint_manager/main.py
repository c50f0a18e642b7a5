"""Start the checkpoint manager: in a host's process, or alone from `python -m tandem_checkpoint_manager`."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from tandem.config import Config
from tandem.rpc.server import RunningServer, listen
from tandem.storage import Lease, Retention, acquire
from tandem_checkpoint_manager.core import CheckpointManager
from tandem_checkpoint_manager.mirror import Mirror
from tandem_checkpoint_manager.servicer import SERVICE, CheckpointServicer


@dataclass(frozen=True, slots=True)
class CheckpointService:
    """A running checkpoint manager."""

    lease: Lease
    manager: CheckpointManager
    mirror: Mirror | None
    server: RunningServer

    @property
    def address(self) -> str:
        """host:port."""
        return self.server.address

    async def stop(self) -> None:
        """Let running calls end, then stop."""
        await self.server.stop()
        if self.mirror:
            await asyncio.to_thread(self.mirror.close)
        await asyncio.to_thread(self.manager.close)
        await asyncio.to_thread(self.lease.release)


async def start(
    config: Config, *, host: str = "127.0.0.1", port: int = 0, rewind_to: int | None = None
) -> CheckpointService:
    """Serve the store at `config.checkpoint.url` (empty: `checkpoints` in the run directory).

    `rewind_to` is for a run that resumes from that version: adapters newer than it are removed first.

    Raises:
        UserError: the store cannot be written, has another manager or holds a state newer than `rewind_to`, or the
            port is taken.
    """
    listener = await listen(host, port)  # first: opening a store mends it, which a start without a port must not
    try:
        lease, manager = await asyncio.to_thread(_open, config.store_url, config, rewind_to)
    except BaseException:
        await listener.close()
        raise
    mirror = None
    if config.checkpoint.also_to:
        mirror = Mirror(
            manager.store,
            config.checkpoint.also_to,
            manager.retention,
            rewind_to=rewind_to,
            lease_s=config.checkpoint.lease_s,
        )
    running = await listener.serve(CheckpointServicer(manager, mirror).register, [SERVICE])
    return CheckpointService(lease, manager, mirror, running)


def _open(url: str, config: Config, rewind_to: int | None) -> tuple[Lease, CheckpointManager]:
    lease = acquire(url, config.checkpoint.lease_s)  # first: nobody else writes while this one clears up
    try:
        wanted = config.checkpoint
        retention = Retention(wanted.keep, wanted.keep_best, wanted.best_metric, wanted.keep_every)
        return lease, CheckpointManager(url, retention, rewind_to, Path(config.model.path), lease.check)
    except BaseException:
        lease.release()
        raise
