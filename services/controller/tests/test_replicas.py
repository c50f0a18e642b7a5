"""Replicas that die are replaced, beside those that live: real calls to replicas that play what a test says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from replicas import Replica

from tandem.config import Config
from tandem.rpc.door import OPEN
from tandem.rpc.gen.rollout.v1 import rollout_pb2_grpc
from tandem.rpc.server import serve
from tandem.runtime import until
from tandem.types import Death, Identity, Member, Role, Unavailable, UserError
from tandem_controller import replicas as replicas_module
from tandem_controller.hosts import Hosts
from tandem_controller.recoveries import Recoveries
from tandem_controller.replicas import Replicas


class Places:
    """A deployment of replicas; as the real one, it has forgotten a dead one before it tells of its death."""

    def __init__(self, loop: asyncio.AbstractEventLoop, stack: AsyncExitStack) -> None:
        self.members: dict[int, Member] = {}
        self.generations: dict[int, int] = {}
        self.stopped: list[int] = []
        self.failures = 0  # starts that are still to fail
        self._loop, self._stack = loop, stack

    @property
    def rollouts(self) -> tuple[Member, ...]:
        return tuple(self.members[index] for index in sorted(self.members))

    def start_rollout(self, index: int) -> Member:
        self.members.pop(index, None)
        if self.failures:
            self.failures -= 1
            raise Unavailable("no room")
        return asyncio.run_coroutine_threadsafe(self.begin(index), self._loop).result(30)

    def stop_rollout(self, index: int) -> None:
        del self.members[index]
        self.stopped.append(index)

    async def begin(self, index: int) -> Member:
        generation = self.generations[index] = self.generations.get(index, 0) + 1
        replica = Replica()
        server = await serve(lambda s: rollout_pb2_grpc.add_RolloutServiceServicer_to_server(replica, s), [])
        self._stack.push_async_callback(server.stop, 0)
        member = self.members[index] = Member(Identity(Role.ROLLOUT, index, generation), server.address, "node")
        return member

    def kill(self, index: int) -> Death:
        return Death(self.members.pop(index), "killed by SIGKILL")


@asynccontextmanager
async def opened(count: int, **faults: int) -> AsyncIterator[tuple[Places, Replicas]]:
    config = Config.model_validate({"model": {"path": "x"}, "faults": faults})
    async with AsyncExitStack() as stack:
        places = Places(asyncio.get_running_loop(), stack)
        for index in range(count):
            await places.begin(index)
        replicas = Replicas(Hosts(places, config, OPEN), Recoveries())  # type: ignore[arg-type]
        try:
            await replicas.open()
            yield places, replicas
        finally:
            await replicas.close()


async def serving(replicas: Replicas, *generations: int) -> None:
    """Wait until so many replicas of these generations take part, by index."""

    async def there() -> bool | None:
        found = [member.identity.generation for member in replicas.fleet.members]
        return True if found == list(generations) else None

    assert await until(there, every_s=0.02, for_s=30), replicas.fleet.members


async def test_one_that_dies_without_a_word_is_replaced_though_nobody_was_calling_it() -> None:
    async with opened(2) as (places, replicas):
        replicas.died(places.kill(1))
        await serving(replicas, 1, 2)
        assert [replicas.state(member) for member in places.rollouts] == ["serving", "serving"]


async def test_a_death_told_twice_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(1) as (places, replicas):
        death = places.kill(0)
        replicas.died(death)
        replicas.died(death)
        await serving(replicas, 2)
        replicas.died(death)  # late: its successor lives
        await serving(replicas, 2)
        assert places.generations == {0: 2}


async def test_a_start_that_fails_is_tried_until_it_succeeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas_module, "PAUSE_S", 0.01)
    async with opened(2) as (places, replicas):
        places.failures = 5
        replicas.died(places.kill(0))
        await serving(replicas, 2, 1)


async def test_one_that_dies_as_it_is_let_in_is_replaced_too() -> None:
    async with opened(1) as (places, replicas):
        replicas.died(places.kill(0))

        async def begun() -> bool | None:
            return True if 0 in places.members else None

        assert await until(begun, every_s=0.001, for_s=30)
        replicas.died(places.kill(0))  # before, while or after it is let in
        await serving(replicas, 3)


async def test_more_and_fewer_of_them() -> None:
    async with opened(1) as (places, replicas):
        replicas.scale(3)
        await serving(replicas, 1, 1, 1)
        replicas.scale(1)
        await serving(replicas, 1)

        async def stopped() -> bool | None:
            return True if sorted(places.stopped) == [1, 2] else None

        assert await until(stopped, every_s=0.02, for_s=30)
        with pytest.raises(UserError, match="a run needs one replica at least"):
            replicas.scale(0)


async def test_where_nobody_is_to_be_replaced_the_others_go_on() -> None:
    async with opened(2, restarts=0) as (places, replicas):
        replicas.died(places.kill(0))
        assert [member.identity.index for member in replicas.fleet.members] == [1]
        assert places.generations == {0: 1, 1: 1}
