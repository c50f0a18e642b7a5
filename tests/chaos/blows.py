"""Processes that do not die, but stop for a while, for good, or again and again."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Awaitable
from contextlib import suppress

import psutil

from tests.nodes import Node

Blow = tuple[str, Awaitable[None]]  # what was hit, in words; what is to be awaited for it to be over


def paused(process: psutil.Process, name: str, seconds: float) -> Blow:
    """SIGSTOP, and SIGCONT later."""
    process.send_signal(signal.SIGSTOP)

    async def resume() -> None:
        await asyncio.sleep(seconds)
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGCONT)

    return f"{name} for {seconds:g} s", resume()


def silenced(process: psutil.Process, name: str, within_s: float) -> Blow:
    """SIGSTOP until somebody ends it. AssertionError where nobody does."""
    process.send_signal(signal.SIGSTOP)

    async def gone() -> None:
        end = time.monotonic() + within_s
        with suppress(psutil.NoSuchProcess):
            while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                assert time.monotonic() < end, f"{name}, which is silent, is not replaced"
                await asyncio.sleep(0.2)

    return name, gone()


def slowed(node: Node, seconds: float) -> None:
    """Give a node a fifth of its time."""
    end = time.monotonic() + seconds
    tick = threading.Event()
    while time.monotonic() < end:
        node.pause()
        tick.wait(0.4)
        node.resume()
        tick.wait(0.1)
