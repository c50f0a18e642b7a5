"""The end of a run waits for the mirror: what a person then relies on is there."""

from __future__ import annotations

import asyncio

from rich.console import Console

from tandem.obs import get_logger
from tandem.rpc.clients import CheckpointClient
from tandem.runtime import until
from tandem.types import MirrorStatus, TandemError

log = get_logger(__name__)
WAIT_S = 600.0


async def mirror_caught_up(
    checkpoints: CheckpointClient, console: Console, stop: asyncio.Event, wait_s: float = WAIT_S
) -> None:
    """Wait until all is in the mirror, something keeps it from there, `stop` is set, or time is up; says which."""
    told = False

    async def settled() -> MirrorStatus | None:
        nonlocal told
        mirror = (await checkpoints.status()).mirror
        if mirror is None or not mirror.backlog or mirror.problem or stop.is_set():
            return mirror or MirrorStatus("", {}, 0, 0, 0.0, "")
        if not told:
            waiting = f"waiting for {mirror.backlog} versions on their way to {mirror.url}, {wait_s:.0f} s at most"
            console.print(f"{waiting}; Ctrl-C to end without", highlight=False, soft_wrap=True)
            told = True
        return None

    try:
        mirror = await until(settled, every_s=0.2, for_s=wait_s)
    except TandemError as problem:
        log.warning("how the mirror fares is not known: %s", problem)
        return
    if mirror is None:
        log.warning("the mirror is still behind after %.0f s; --resume copies what is missing there", wait_s)
    elif mirror.backlog:
        why = mirror.problem or "not waited for"
        log.warning("%d versions are not at %s: %s; --resume copies them", mirror.backlog, mirror.url, why)
    elif mirror.url:
        held = ", ".join(f"{kind} v{version}" for kind, version in mirror.durable.items())
        log.info("durable at %s: %s", mirror.url, held)
