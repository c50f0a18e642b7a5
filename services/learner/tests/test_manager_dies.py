"""The checkpoint manager is killed while it receives and while it publishes; ranks are started anew. Real processes."""

from __future__ import annotations

import asyncio
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from episodes import play_groups
from processes import learner, service

from tandem.config import Config
from tandem.rpc.clients import CheckpointClient
from tandem.rpc.door import Door
from tandem.rpc.ports import held_address
from tandem.runtime.faults import VARIABLE
from tandem.storage import open_tensors
from tandem.types import AdapterRef, Identity, LearnerStatus, PublishKind, Role, StaleRequest, Unavailable
from tandem_learner.leader import Leader
from tandem_learner.orders import Destinations
from tandem_learner.rank import Rank

MANAGER = "tandem_checkpoint_manager"
STATE = PublishKind.STATE
WITHIN_S = 120.0


@pytest.fixture
def recipe(tiny_model: Path, tmp_path: Path) -> str:
    config = Config.model_validate(
        {
            "model": {"path": str(tiny_model)},
            "run": {"dir": str(tmp_path)},
            "rollout": {"group_size": 4},
            "learner": {"lr": 1e-3, "lora": {"rank": 6}},
            "faults": {"resend_s": 100},
        }
    )
    path = tmp_path / "recipe.json"
    path.write_text(config.model_dump_json())
    return str(path)


async def publish(address: str, status: LearnerStatus, version: int) -> AdapterRef:
    client = CheckpointClient(address)
    try:
        return await client.publish(STATE, version, world_size=status.world_size, base_model=status.base_model)
    finally:
        await client.close()


async def test_an_export_outlives_its_checkpoint_manager(
    recipe: str, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the same address the ranks send once more by themselves; elsewhere they are told. All the while they train."""
    groups = play_groups(tiny_model, groups=2, group_size=4, max_turns=2)
    async with AsyncExitStack() as stack:
        address = stack.enter_context(held_address())
        port = address.rpartition(":")[2]
        monkeypatch.setenv(VARIABLE, "manager/receive/checked")
        first, _ = await stack.enter_async_context(service(MANAGER, recipe, "--port", port))
        monkeypatch.delenv(VARIABLE)
        pair = await stack.enter_async_context(learner(recipe, 2))
        await pair.client.train_step(0, groups)
        await pair.client.snapshot(1, STATE)
        exporting = asyncio.create_task(pair.client.export(1, STATE, address))
        assert await asyncio.wait_for(first.wait(), WITHIN_S) == -signal.SIGKILL
        assert (await pair.client.train_step(1, groups)).policy_version == 2
        assert not exporting.done()
        monkeypatch.setenv(VARIABLE, "manager/publish/file")
        second, _ = await stack.enter_async_context(service(MANAGER, recipe, "--port", port))
        monkeypatch.delenv(VARIABLE)
        sent = await asyncio.wait_for(exporting, WITHIN_S)
        status = await pair.client.status()
        with pytest.raises(Unavailable):
            await publish(address, status, 1)
        assert await asyncio.wait_for(second.wait(), WITHIN_S) == -signal.SIGKILL

        hopeless = asyncio.create_task(pair.client.export(1, STATE, address))  # nobody is there any more
        _, elsewhere = await stack.enter_async_context(service(MANAGER, recipe))
        assert await pair.client.export(1, STATE, elsewhere) == sent  # of the snapshot: the learner is at 2
        with pytest.raises(Unavailable, match=f"state v1 goes to the checkpoint manager at {elsewhere} instead"):
            await hopeless
        published = await publish(elsewhere, status, 1)
        assert await pair.client.export(2, STATE, elsewhere) != sent
        assert (await publish(elsewhere, status, 2)).sha256 != published.sha256


async def test_a_dead_generations_late_shard_is_refused_and_its_successors_are_published(
    recipe: str, tiny_model: Path, make_core: Any
) -> None:
    """Ranks that were given up for dead wake, and export the version that their successors are about to publish."""
    groups = play_groups(tiny_model, groups=2, group_size=4, max_turns=2)
    async with service(MANAGER, recipe) as (_, manager):
        old, new = (
            Leader(Rank(make_core(), ThreadPoolExecutor(1), Door(Identity(Role.LEARNER, 0, generation))), [], WITHIN_S)
            for generation in (1, 2)
        )
        await old.train_step("step", 0, groups)
        await new.train_step("step", 0, groups[:1])  # other bytes, as they may well be
        to = Destinations(manager)
        given_up = await old.export("delivered, never published", 1, STATE, to)
        sent = await new.export("export", 1, STATE, to)
        with pytest.raises(StaleRequest, match=r"learner 0 \(generation 1\) was replaced: generation 2 has called"):
            await old.export("late", 1, STATE, to)
        published = await publish(manager, new.status(), 1)
        with open_tensors(published) as tensors:
            names = [name for name in tensors.keys() if name.startswith("exp_avg/")]  # noqa: SIM118 - no mapping
            moments = new.rank.core.optimizer.moments()
            assert all(np.array_equal(tensors.get_tensor(name), moments[name].numpy()) for name in names)
        assert names and sent.shards[0].sha256 != given_up.shards[0].sha256
        await old.stop()
        await new.stop()
