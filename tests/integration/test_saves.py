"""Saves beside what comes next, with a real learner and a real checkpoint manager; a gate holds publication up."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tandem.config import Config
from tandem.rpc.clients import CheckpointClient, LearnerClient, RolloutClient
from tandem.runtime import deadline
from tandem.types import AdapterRef, NotFound, PublishKind, TrajectoryGroup, Unavailable
from tandem_checkpoint_manager import main as manager_main
from tandem_checkpoint_manager.main import CheckpointService
from tandem_controller.demonstrations import Expert
from tandem_controller.fleet import Fleet
from tandem_controller.saver import Saver
from tandem_controller.services import Services, publish
from tandem_learner import main as learner_main

ROOT = Path(__file__).parents[2]
WITHIN_S = 60.0


class Gated(CheckpointClient):
    """Publishes once `gate` is open."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.gate = asyncio.Event()

    async def publish(self, *args: Any, **settings: Any) -> AdapterRef:
        await self.gate.wait()
        return await super().publish(*args, **settings)


@dataclass
class World:
    """A learner and a manager; `gate` holds up what is published."""

    config: Config
    learner: LearnerClient
    manager: Gated
    service: CheckpointService
    groups: Sequence[TrajectoryGroup]
    services: Services

    @property
    def gate(self) -> asyncio.Event:
        return self.manager.gate

    def saver(self, on_failure: str = "stop", keep: int = 3) -> Saver:
        settings = self.config.checkpoint.model_copy(update={"on_failure": on_failure, "keep": keep})
        return Saver(self.services, settings, 0)

    async def step(self, version: int) -> None:
        """Make the version after this one."""
        await self.learner.train_step(version, self.groups)

    async def saved(self, version: int) -> dict[str, object]:
        return json.loads((await self.manager.get(PublishKind.STATE, version))[1])


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    config = Config.model_validate(
        {
            "model": {"path": str(ROOT / "models/tiny-qwen3vl")},
            "env": {"window": 1},
            "sft": {"batch": 2},
            "learner": {"lora": {"rank": 4}, "algo": {"loss": "sft"}},
            "checkpoint": {"url": str(tmp_path / "store"), "keep": 10},
        }
    )
    service = await manager_main.start(config)
    learner = await learner_main.start(config)
    clients = LearnerClient(learner.address), Gated(service.address)
    status = await clients[0].status()
    fleet = Fleet(config.rollout, 1e-3, lambda member: RolloutClient(member.address))
    services = Services(fleet, *clients, status.adapter_config_json, status.base_model)
    world = World(config, *clients, service, Expert(config).take(1000)[0], services)
    world.gate.set()
    await publish(services, PublishKind.ADAPTER, 0)
    async with deadline(WITHIN_S, "the test"):
        yield world
    for client in clients:
        await client.close()
    await learner.stop()
    await service.stop()


async def test_a_save_goes_on_beside_later_versions_and_the_next_one_waits_for_it(world: World) -> None:
    told: list[int] = []

    async def then() -> None:
        told.append((await world.manager.get(PublishKind.STATE))[0].version)

    saver = world.saver()
    await world.step(0)
    world.gate.clear()
    await saver.begin(1, lambda: '{"of": 1}', PublishKind.ADAPTER, then=then)
    await world.step(1)  # the learner goes on
    with pytest.raises(NotFound):
        await world.saved(1)
    assert set(saver.figures()) == {"seconds/snapshot"}
    next_one = asyncio.create_task(saver.begin(2, lambda: '{"of": 2}', PublishKind.ADAPTER))
    await asyncio.wait({next_one}, timeout=0.2)
    assert not next_one.done() and saver.saved == 0
    world.gate.set()
    await next_one
    assert (saver.saved, told) == (1, [1])
    await saver.settle()
    assert (await world.saved(1), await world.saved(2)) == ({"of": 1}, {"of": 2})
    adapters = [ref.version for ref in await world.manager.list(PublishKind.ADAPTER)]
    assert adapters == [0, 1, 2]
    figures = saver.figures()
    assert set(figures) == {"seconds/snapshot", "seconds/save_wait", "save/version", "save/seconds", "save/bytes"}
    assert figures["save/version"] == 2
    parameters = (await world.learner.status()).trainable_parameters
    assert 0 <= figures["save/bytes"] - 3 * 4 * parameters < 64 * 1024  # weights, two moments, and a little
    assert saver.figures() == {}


@pytest.mark.parametrize("on_failure", ["stop", "go_on"])
async def test_a_save_that_fails_is_told_at_once_and_ends_the_run_or_not(
    world: World, caplog: pytest.LogCaptureFixture, on_failure: str
) -> None:
    saver = world.saver(on_failure)
    await world.service.stop()
    with caplog.at_level(logging.WARNING):
        await saver.begin(0, lambda: "{}")
        while not caplog.records:
            await asyncio.wait({asyncio.ensure_future(world.learner.status())})
    [record] = caplog.records
    goes = {"stop": "the run ends", "go_on": "the run goes on"}[on_failure]
    said = record.getMessage()
    assert f"version 0 could not be saved, {goes}: learner at" in said and "\n" not in said
    if on_failure == "stop":
        with pytest.raises(Unavailable, match="checkpoint manager at"):
            saver.check()
    saver.check()  # once
    await saver.settle()
    assert "save/version" not in saver.figures()


async def test_a_version_too_many_waits_for_the_save_whose_weights_it_would_push_out(world: World) -> None:
    saver = world.saver(keep=2)
    await saver.make_way(9)  # nothing is being saved
    await world.step(0)
    world.gate.clear()
    await saver.begin(1, lambda: "{}", PublishKind.ADAPTER)
    await saver.make_way(2)  # adapters 1 and 2 are kept
    third = asyncio.create_task(saver.make_way(3))
    await asyncio.wait({third}, timeout=0.2)
    assert not third.done()
    world.gate.set()
    await third
    assert saver.saved == 1
