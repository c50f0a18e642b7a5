"""Blocking calls of a deployment, from the event loop: what is waited for, and why somebody died."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from queue import Empty, Queue
from threading import Event
from typing import Any

import pytest
import pytest_asyncio

from tandem.config import Config
from tandem.rpc.door import OPEN
from tandem.runtime import WAITS, until
from tandem.types import Death, Identity, Member, Role, Unavailable
from tandem_controller import hosts as module
from tandem_controller.hosts import Hosts

REPLICA = Member(Identity(Role.ROLLOUT, 1, 2), "h:1", "node-1")
PROBLEM = Unavailable("rollout 1: UNAVAILABLE: Socket closed")


class Slow:
    """A deployment that starts nothing until `go`, and tells of the deaths in `deaths`."""

    def __init__(self) -> None:
        self.go, self.asked = Event(), Event()
        self.deaths: Queue[Death] = Queue()
        self.looks = 0

    def start_rollout(self, index: int) -> Member:
        self.asked.set()
        assert self.go.wait(60)
        return REPLICA

    def wait_death(self, timeout_s: float) -> Death | None:
        self.looks += 1
        try:
            return self.deaths.get(timeout=0.01)
        except Empty:
            return None


async def looked(slow: Slow, times: int) -> bool | None:
    """Whether it was asked for deaths so often; None for not yet."""
    return True if slow.looks >= times else None


@pytest.fixture
def slow() -> Slow:
    return Slow()


@pytest_asyncio.fixture
async def hosts(slow: Slow) -> AsyncIterator[Hosts]:
    deployment: Any = slow
    made = Hosts(deployment, Config.model_validate({"model": {"path": "m"}}), OPEN)
    async with made.deaths(lambda death: None):
        yield made


async def test_a_start_is_waited_for_and_a_look_for_deaths_is_no_progress(hosts: Hosts, slow: Slow) -> None:
    starting = asyncio.create_task(hosts.call(slow.start_rollout, 1))
    await asyncio.to_thread(slow.asked.wait, 60)
    assert ("Ray", "start rollout") in [(wait.whom, wait.what) for wait in WAITS.now()]
    moved, looks = WAITS.moved, slow.looks
    assert await until(lambda: looked(slow, looks + 3), every_s=0.01, for_s=60)
    assert WAITS.moved == moved
    slow.go.set()
    assert await starting == REPLICA and WAITS.moved > moved


async def test_why_somebody_died_is_what_ray_says_soon_after(hosts: Hosts, slow: Slow) -> None:
    asked = asyncio.create_task(hosts.death_of(REPLICA, PROBLEM))
    await asyncio.sleep(0.02)
    killed = Death(REPLICA, "killed by SIGKILL", ("the last line",))
    slow.deaths.put(Death(Member(Identity(Role.ROLLOUT, 1, 1), "h:1"), "another generation's"))
    slow.deaths.put(killed)
    assert await asked == killed


async def test_one_of_whom_ray_says_nothing_has_failed(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NEWS_S", 0.1)
    death = await hosts.death_of(REPLICA, PROBLEM)
    assert death == Death(REPLICA, "calls of it fail: rollout 1: UNAVAILABLE: Socket closed")
