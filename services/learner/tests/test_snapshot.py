"""What an export sends is what the learner was at its snapshot; training goes on beside the sending."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from processes import deaf_peer, service

from tandem.config import Config
from tandem.rpc.clients import LearnerClient
from tandem.types import PublishKind, StaleRequest, TrajectoryGroup, Unavailable, UserError
from tandem_learner.main import start

WITHIN_S = 60.0
Deaf = tuple[str, asyncio.Event]


@pytest.fixture
async def deaf() -> AsyncIterator[Deaf]:
    async with deaf_peer() as peer:
        yield peer


async def test_an_export_sends_what_the_learner_was_at_the_snapshot(
    client: LearnerClient, groups: list[TrajectoryGroup], config: Config, tmp_path: Path
) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(config.model_dump_json())
    async with service("tandem_checkpoint_manager", str(recipe)) as (_, address):
        await client.train_step(0, groups)
        at_once = await client.export(1, PublishKind.STATE, address)
        taken = await client.snapshot(1, PublishKind.STATE)
        again = await client.snapshot(1, PublishKind.STATE)
        assert taken == again  # the copy is held: nothing is copied twice
        parameters = (await client.status()).trainable_parameters
        assert 0 <= taken.size - 2 * 4 * parameters < 64 * 1024  # two float32 moments, and a little
        await client.train_step(1, groups)
        assert await client.export(1, PublishKind.STATE, address) == at_once
        newer = await client.export(2, PublishKind.STATE, address)
        assert newer[0].sha256 != at_once[0].sha256
        with pytest.raises(StaleRequest, match="at version 2, the request expects 1"):
            await client.export(1, PublishKind.STATE, address)  # no longer held
        with pytest.raises(UserError, match="it exports no model"):
            await client.snapshot(2, PublishKind.MODEL)


async def test_training_and_other_kinds_go_on_while_a_shard_is_sent(
    client: LearnerClient,
    groups: list[TrajectoryGroup],
    config: Config,
    tmp_path: Path,
    deaf: tuple[str, asyncio.Event],
) -> None:
    address, called = deaf
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(config.model_dump_json())
    sending = asyncio.create_task(client.export(0, PublishKind.STATE, address, timeout_s=600))
    async with asyncio.timeout(WITHIN_S), service("tandem_checkpoint_manager", str(recipe)) as (_, manager):
        await called.wait()
        assert (await client.train_step(0, groups)).policy_version == 1
        assert len(await client.export(1, PublishKind.ADAPTER, manager)) == 1
    next_one = asyncio.create_task(client.snapshot(1, PublishKind.STATE))
    assert (await client.train_step(1, groups)).policy_version == 2
    assert not sending.done() and not next_one.done()  # its copy would be written over
    sending.cancel()
    next_one.cancel()


async def test_a_learner_that_stops_while_it_sends_tells_the_caller(config: Config, deaf: Deaf) -> None:
    address, called = deaf
    running = await start(config)
    client = LearnerClient(running.address)
    sending = asyncio.create_task(client.export(0, PublishKind.STATE, address))
    async with asyncio.timeout(WITHIN_S):
        await called.wait()
        await running.stop()
        with pytest.raises(Unavailable):
            await sending
    await client.close()


async def test_a_step_that_failed_half_way_leaves_no_version_to_copy(
    config: Config, groups: list[TrajectoryGroup], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a rank has moved, another may not have: nothing of it is saved as the version before. A restore is."""
    from tandem_learner import step

    def fails(*_: object) -> dict[str, float]:
        raise RuntimeError("out of memory")

    running = await start(config)
    client = LearnerClient(running.address)
    await client.snapshot(0, PublishKind.STATE)
    monkeypatch.setattr(step, "combine", fails)  # after the updates
    with pytest.raises(Unavailable, match="Train failed: out of memory"):
        await client.train_step(0, groups)
    with pytest.raises(Unavailable, match="a step failed on its way to version 1; restore a saved version"):
        await client.snapshot(0, PublishKind.ADAPTER)
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1"):
        await client.export(0, PublishKind.STATE, "127.0.0.1:1")  # the copy from before is whole
    await client.close()
    await running.stop()


async def test_a_checkpoint_manager_that_refuses_is_one_line(client: LearnerClient) -> None:
    with pytest.raises(Unavailable, match=r"checkpoint manager at 127\.0\.0\.1:1: UNAVAILABLE") as caught:
        await client.export(0, PublishKind.STATE, "127.0.0.1:1")
    assert "\n" not in str(caught.value)
