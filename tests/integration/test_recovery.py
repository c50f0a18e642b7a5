"""A learner or a checkpoint manager that dies is replaced, and the run comes to what it would have come to.

Real learner and manager over real gRPC in this process; their deaths are their servers', without a word. Deaths of real
processes under Ray: `tests/chaos`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from queue import Empty, Queue
from typing import Any

import pytest

from tandem.config import Config
from tandem.rpc.door import Door
from tandem.types import (
    Death,
    Identity,
    Member,
    PublishKind,
    Role,
    TandemError,
    TrajectoryGroup,
    Unavailable,
    UserError,
)
from tandem_checkpoint_manager import main as manager_main
from tandem_controller import supervisor
from tandem_controller.demonstrations import Expert
from tandem_controller.hosts import Hosts
from tandem_controller.loop import learn
from tandem_controller.recoveries import Recoveries
from tandem_controller.replicas import Replicas
from tandem_controller.saver import Saver
from tandem_controller.services import Services, publish
from tandem_controller.sft import imitated
from tandem_controller.supervisor import Supervisor
from tandem_learner import main as learner_main

ROOT = Path(__file__).parents[2]
STEPS = 4


@dataclass
class InProcess:
    """A deployment of a learner and a manager that run on this process's loop. `starts` is what it was asked for; what
    is in `refuses` cannot be started, so often."""

    config: Config
    loop: asyncio.AbstractEventLoop
    starts: list[str] = field(default_factory=list)
    refuses: dict[str, int] = field(default_factory=dict)
    told: Queue[Death] = field(default_factory=Queue)
    running: dict[Role, Any] = field(default_factory=dict)
    generations: dict[Role, int] = field(default_factory=dict)
    addresses: dict[Role, str] = field(default_factory=dict)
    world_size: int = 1
    ends_first: bool = False  # a start that is refused has ended what was there
    rollouts: tuple[Member, ...] = ()

    @property
    def learner(self) -> Member:
        return self._member(Role.LEARNER)

    @property
    def ranks(self) -> tuple[Member, ...]:
        return tuple(
            Member(Identity(Role.LEARNER, rank, self.generations[Role.LEARNER]), "", f"node-{rank}")
            for rank in range(self.world_size)
        )

    @property
    def checkpoint(self) -> Member:
        return self._member(Role.CHECKPOINT_MANAGER)

    def start_learner(self, world_size: int) -> Member:
        self.world_size = world_size
        return self._start(Role.LEARNER, f"learner x{world_size}", learner_main.start)

    def start_checkpoint(self, rewind_to: int | None) -> Member:
        start = partial(manager_main.start, rewind_to=rewind_to)
        return self._start(Role.CHECKPOINT_MANAGER, f"manager at {rewind_to}", start)

    def wait_death(self, timeout_s: float) -> Death | None:
        try:
            return self.told.get(timeout=timeout_s)
        except Empty:
            return None

    def avoid(self, node: str) -> None:
        self.starts.append(f"not on {node}")

    async def kill(self, role: Role, *, told: bool = True) -> None:
        """End a service without a word; `told`: Ray hears of it."""
        member, service = self._member(role), self.running.pop(role)
        await service.stop()
        if told:
            self.told.put(Death(member, "killed by the test"))

    def _start(self, role: Role, what: str, start: Callable[..., Awaitable[Any]]) -> Member:
        self.starts.append(what)
        if self.refuses.get(what, 0) > 0:
            self.refuses[what] -= 1
            self.generations[role] += self.ends_first
            raise UserError(f"no room for {what}")
        return asyncio.run_coroutine_threadsafe(self.begin(role, start), self.loop).result()

    async def begin(self, role: Role, start: Callable[..., Awaitable[Any]]) -> Member:
        if service := self.running.pop(role, None):
            await service.stop()
        generation = self.generations[role] = self.generations.get(role, 0) + 1
        service = self.running[role] = await start(self.config, door=Door(Identity(role, 0, generation)))
        self.addresses[role] = service.address
        return self._member(role)

    def _member(self, role: Role) -> Member:
        return Member(Identity(role, 0, self.generations[role]), self.addresses[role], "node-0")


@dataclass
class World:
    """A run as the controller sees it, with its journal in `learned`."""

    config: Config
    deployment: InProcess
    services: Services
    supervisor: Supervisor
    groups: dict[int, list[TrajectoryGroup]]

    async def step(self) -> None:
        version = self.services.version
        await learn(self.services, version, self.groups[version])

    async def adapter(self, version: int) -> bytes:
        ref, _ = await self.services.checkpoints.get(PublishKind.ADAPTER, version)
        return (Path(ref.url) / "adapter_model.safetensors").read_bytes()

    def save(self, version: int) -> Saver:
        return Saver(self.services, self.config.checkpoint, version)


def config_of(folder: Path, **faults: int) -> Config:
    return Config.model_validate(
        {
            "model": {"path": str(ROOT / "models/tiny-qwen3vl")},
            "run": {"deterministic": True},
            "env": {"window": 1},
            "sft": {"batch": 2},
            "learner": {"lora": {"rank": 4}, "algo": {"loss": "sft"}},
            "checkpoint": {"url": str(folder / "store"), "keep": 10},
            "faults": faults,
        }
    )


@asynccontextmanager
async def world_of(folder: Path, **faults: int) -> AsyncIterator[World]:
    config = config_of(folder, **faults)
    expert = Expert(config)
    deployment = InProcess(config, asyncio.get_running_loop())
    await deployment.begin(Role.CHECKPOINT_MANAGER, manager_main.start)
    await deployment.begin(Role.LEARNER, learner_main.start)
    hosts, recoveries = Hosts(deployment, config, Door(Identity(Role.CONTROLLER))), Recoveries()  # type: ignore[arg-type]
    replicas = Replicas(hosts, recoveries)
    learner, manager = hosts.learner(deployment.learner), hosts.checkpoints(deployment.checkpoint)
    status = await learner.status()
    services = Services(replicas.fleet, learner, manager, status.adapter_config_json, status.base_model)
    history = partial(imitated, expert)
    kept = services.keeper = Supervisor(hosts, services, replicas, recoveries, history)
    cursor, groups = 0, dict[int, list[TrajectoryGroup]]()
    for version in range(STEPS):
        groups[version], cursor = expert.take(cursor)
    try:
        async with hosts.deaths(kept.died):
            yield World(config, deployment, services, kept, groups)
    finally:
        await kept.close()
        await replicas.close()
        await services.learner.close()
        await services.checkpoints.close()
        for service in deployment.running.values():
            await service.stop()


@pytest.fixture(scope="module")
def faultless(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """The adapters of versions 1 to STEPS of a run that nothing happens to."""

    async def run() -> list[bytes]:
        async with world_of(tmp_path_factory.mktemp("faultless")) as world:
            return [await made(world) for _ in range(STEPS)]

    return asyncio.run(run())


async def made(world: World) -> bytes:
    """One step more: the adapter that it published."""
    await world.step()
    await publish(world.services, PublishKind.ADAPTER, world.services.version)
    return await world.adapter(world.services.version)


def described(world: World) -> str:
    """The metadata of a state of the version that the learner is at."""
    return f'{{"next_seed": {world.groups[world.services.version][0].seed}}}'


async def save(world: World) -> None:
    await publish(world.services, PublishKind.STATE, world.services.version, described(world))


async def test_a_learner_that_dies_learns_again_what_it_had_learned(tmp_path: Path, faultless: list[bytes]) -> None:
    async with world_of(tmp_path) as world:
        found = [await made(world)]
        await save(world)
        found += [await made(world), await made(world)]
        await world.deployment.kill(Role.LEARNER)
        found.append(await made(world))
        assert found == faultless
        assert world.deployment.starts == ["learner x1"]
        [recovery] = world.supervisor.recoveries.all
        assert "have learned versions 1 to 3 again" in recovery.action and recovery.seconds is not None


async def test_one_that_dies_before_anything_is_saved_begins_at_the_start(
    tmp_path: Path, faultless: list[bytes]
) -> None:
    async with world_of(tmp_path) as world:
        found = [await made(world)]
        await world.deployment.kill(Role.LEARNER, told=False)  # the call that fails finds it out
        found += [await made(world), await made(world)]
        assert found == faultless[:3]


async def test_one_that_dies_before_its_shard_is_sent_is_asked_again(tmp_path: Path, faultless: list[bytes]) -> None:
    async with world_of(tmp_path) as world:
        await world.step()
        publishing = asyncio.create_task(publish(world.services, PublishKind.ADAPTER, 1))
        await world.deployment.kill(Role.LEARNER)
        await publishing
        assert [await world.adapter(1), await made(world)] == faultless[:2]


async def test_a_manager_that_dies_is_started_on_the_same_store(tmp_path: Path, faultless: list[bytes]) -> None:
    async with world_of(tmp_path) as world:
        found = [await made(world)]
        await world.deployment.kill(Role.CHECKPOINT_MANAGER)
        found.append(await made(world))
        await world.deployment.kill(Role.CHECKPOINT_MANAGER, told=False)
        found.append(await made(world))
        assert found == faultless[:3]
        assert world.deployment.starts == ["manager at 1", "manager at 2"] or world.deployment.starts == [
            "manager at 1",
            "manager at 3",  # found out by the call that publishes 3
        ]


async def test_both_at_once(tmp_path: Path, faultless: list[bytes]) -> None:
    async with world_of(tmp_path) as world:
        found = [await made(world)]
        await save(world)
        await world.deployment.kill(Role.CHECKPOINT_MANAGER)
        await world.deployment.kill(Role.LEARNER)
        found.append(await made(world))
        assert found == faultless[:2]


async def test_a_save_that_ends_with_the_learner_is_made_up_for(tmp_path: Path, faultless: list[bytes]) -> None:
    async with world_of(tmp_path) as world:
        found, saver = [await made(world)], world.save(0)
        await saver.begin(1, partial(str, described(world)))
        await world.step()
        await world.deployment.kill(Role.LEARNER)
        await saver.settle()
        assert saver.lost or saver.saved == 1  # sent before it died
        await publish(world.services, PublishKind.ADAPTER, 2)
        found.append(await world.adapter(2))
        await saver.begin(2, partial(str, described(world)))
        await saver.settle()
        assert (saver.saved, saver.lost) == (2, False)
        assert found == faultless[:2]


async def test_what_cannot_be_mended_is_told_and_ends_the_run(tmp_path: Path) -> None:
    async with world_of(tmp_path, restarts=1) as world:
        await made(world)
        world.deployment.refuses["learner x1"] = 99
        await world.deployment.kill(Role.LEARNER)
        with pytest.raises(TandemError, match="no room for learner x1"):
            await made(world)


async def test_without_restarts_the_first_death_ends_the_run(tmp_path: Path) -> None:
    async with world_of(tmp_path, restarts=0) as world:
        await world.deployment.kill(Role.LEARNER)
        with pytest.raises(TandemError, match=r"learner: .* at version 0 .*killed by the test"):
            await made(world)


async def test_a_store_that_fails_for_a_while_costs_no_service_its_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "NEWS_S", 0.01)
    failures = iter([True] * (supervisor.TRIES - 1))

    async def work() -> str:
        if next(failures, False):
            raise Unavailable("the store does not answer")
        return "published"

    async with world_of(tmp_path) as world:
        assert await world.services.keeper.keep(work) == "published"
        failures = iter([True] * 99)
        with pytest.raises(Unavailable, match="the store does not answer"):
            await world.services.keeper.keep(work)
        assert world.deployment.starts == []
        failures = iter([True] * 2)
        assert await world.services.keeper.keep(work, blames=Role.LEARNER) == "published"
        assert world.deployment.starts == ["learner x1"]


async def test_other_numbers_of_ranks_and_places_wait_for_the_boundary(tmp_path: Path) -> None:
    saves = list[int]()

    async with world_of(tmp_path) as world:

        async def save_now() -> None:
            saves.append(world.services.version)
            await save(world)

        await made(world)
        await world.services.keeper.boundary(save_now)
        assert not saves  # nothing is asked for
        await world.supervisor.drain("node-0", "it is to be replaced")
        await world.supervisor.drain("node-0", "it is told again")
        assert world.supervisor.pending() == ("node node-0 is left",)
        await made(world)
        await world.services.keeper.boundary(save_now)
        assert saves == [2] and not world.supervisor.pending()
        assert world.deployment.starts == ["not on node-0", "not on node-0", "learner x1"]
        world.deployment.refuses["learner x7"] = 1
        await world.supervisor.scale(learner=7)
        await world.services.keeper.boundary(save_now)  # no room: it goes on as it was
        assert world.deployment.starts[3:] == ["learner x7"]
        world.deployment.refuses = {"learner x7": 1}
        world.deployment.ends_first = True
        await world.supervisor.scale(learner=7)
        await world.services.keeper.boundary(save_now)  # room, but they do not start: as many as before are
        assert world.deployment.starts[4:] == ["learner x7", "learner x1"]
        await made(world)
        with pytest.raises(UserError, match="node-9: nothing of this run is there"):
            await world.supervisor.drain("node-9", "why not")
        with pytest.raises(UserError, match="a run needs one rank at least"):
            await world.supervisor.scale(learner=0)
