"""The service over real gRPC, around a stub engine: versions, adapters, sleep, errors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest
from rollout_service import serving

from tandem.types import (
    AdapterRef,
    ContextPolicy,
    DataCorrupt,
    RolloutTask,
    Sampling,
    StaleRequest,
    StopReason,
    Unavailable,
    UserError,
)
from tandem_rollout.base_model import BaseModel

Publish = Callable[..., AdapterRef]
BASE = AdapterRef(0, "", "", "", "", 0)
TASK = RolloutTask("maze2d:tiny", (1, 2), 2, 0, Sampling(max_tokens=8), ContextPolicy(1), 4, 0)


async def test_groups_travel_whole(base: BaseModel) -> None:
    async with serving(base) as service:
        groups = [group async for group in service.client.rollout(TASK)]
        direct = [group async for group in service.replica.rollout(TASK)]
        status = await service.client.status()
    assert [group.seed for group in sorted(groups, key=lambda g: g.seed)] == [1, 2]
    for group in groups:
        (same,) = (replace(g, seconds=group.seconds) for g in direct if g.seed == group.seed)
        assert group == same
    assert (status.episodes_done, status.turns_done, status.episodes_running) == (8, 32, 0)
    assert status.healthy and status.base_model == base.fingerprint and status.max_lora_rank == 32


async def test_adapter_versions(base: BaseModel, publish: Publish) -> None:
    one, two = publish(1), publish(2)
    async with serving(base) as service:
        client, engine = service.client, service.engine
        loaded = await client.load_adapter(one)
        assert (loaded.policy_version, loaded.sha256, loaded.probe_logprob) == (1, one.sha256, -1.5)
        first = engine.folder
        assert await client.load_adapter(one) == loaded and engine.folder == first  # a retry loads nothing
        with pytest.raises(StaleRequest, match="version 0 was asked for, it serves 1"):
            await anext(client.rollout(TASK))
        groups = [group async for group in client.rollout(replace(TASK, policy_version=1))]
        assert {turn.policy_version for g in groups for t in g.trajectories for turn in t.turns} == {1}
        await client.load_adapter(two)
        assert first is not None and not first.exists() and engine.folder is not None and engine.folder.exists()
        assert (await client.load_adapter(BASE)).policy_version == (await client.status()).policy_version == 0
        copies = engine.folder
        assert copies is None


async def test_a_task_that_may_advance_is_played_by_a_newer_version_but_not_by_an_older(
    base: BaseModel, publish: Publish
) -> None:
    async with serving(base) as service:
        await service.client.load_adapter(publish(1))
        groups = [group async for group in service.client.rollout(replace(TASK, may_advance=True))]
        assert {turn.policy_version for g in groups for t in g.trajectories for turn in t.turns} == {1}
        with pytest.raises(StaleRequest, match="version 2 was asked for, it serves 1"):
            await anext(service.client.rollout(replace(TASK, policy_version=2, may_advance=True)))


async def test_a_failed_load_leaves_the_old_adapter(base: BaseModel, publish: Publish) -> None:
    one, two = publish(1), publish(2)
    async with serving(base) as service:
        await service.client.load_adapter(one)
        service.engine.refuses = DataCorrupt("the policy is still the base model's")
        with pytest.raises(DataCorrupt, match="still the base"):
            await service.client.load_adapter(two)
        with pytest.raises(UserError, match="base model"):
            await service.client.load_adapter(replace(two, base_model="0" * 64))
        assert (await service.client.status()).policy_version == 1
        kept = [path.name for path in service.replica._folder.path.iterdir() if path.name.startswith("tandem-v")]
        assert len(kept) == 1 and "v00000001" in kept[0]
        service.engine.refuses = None
        assert (await service.client.load_adapter(two)).policy_version == 2


@pytest.mark.parametrize("sleep_mode", [False, True])
async def test_sleep_and_wake(base: BaseModel, publish: Publish, sleep_mode: bool) -> None:
    async with serving(base, has_sleep_mode=sleep_mode) as service:
        client = service.client
        assert await client.sleep() is sleep_mode
        assert await client.sleep() is sleep_mode  # idempotent
        assert (await client.status()).asleep
        with pytest.raises(StaleRequest, match="sleeps"):
            await anext(client.rollout(TASK))
        with pytest.raises(StaleRequest, match="sleeps"):
            await client.load_adapter(publish(1))
        await client.wake()
        await client.wake()
        assert not (await client.status()).asleep
        assert len([group async for group in client.rollout(TASK)]) == 2


async def test_no_sleep_while_episodes_run_and_cancelling_ends_them(base: BaseModel) -> None:
    async with serving(base, hold=asyncio.Event()) as service:
        waiting = asyncio.ensure_future(anext(service.client.rollout(TASK)))
        await service.engine.until_running(4)
        assert (await service.client.status()).episodes_running == 4
        with pytest.raises(StaleRequest, match="4 episodes are running"):
            await service.client.sleep()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await service.engine.until_running(0)
        assert (await service.client.status()).episodes_running == 0


async def test_failures_are_statuses_or_data(base: BaseModel) -> None:
    async with serving(base, fail_at=1) as service:
        groups = [group async for group in service.client.rollout(TASK)]
        stops = [t.stop_reason for group in groups for t in group.trajectories]
        assert stops.count(StopReason.ENGINE_ERROR) == 1 and stops.count(StopReason.TURN_LIMIT) == 3
        with pytest.raises(
            UserError, match="environment 'maze3d' is neither the recipe's 'maze2d:tiny' nor a variant of it"
        ):
            await anext(service.client.rollout(replace(TASK, env="maze3d")))
        with pytest.raises(UserError, match="out of range"):
            await anext(service.client.rollout(replace(TASK, sampling=Sampling(top_p=0.0))))
        service.engine.healthy = False
        assert not (await service.client.status()).healthy
        with pytest.raises(Unavailable, match="must be replaced"):
            await anext(service.client.rollout(TASK))
