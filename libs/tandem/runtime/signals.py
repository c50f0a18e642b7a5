"""Waiting for the operating system to ask for an end."""

from __future__ import annotations

import asyncio
import signal


async def until_signal() -> signal.Signals:
    """Return at the first SIGINT or SIGTERM; the caller then stops in order. A second one gets its default effect."""
    loop = asyncio.get_running_loop()
    got: asyncio.Future[signal.Signals] = loop.create_future()

    def arrived(number: signal.Signals) -> None:
        for other in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(other)
        if not got.done():
            got.set_result(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, arrived, number)
    return await got
