"""A new adapter from a real learner to real replicas, by a real checkpoint manager and the controller's own functions:
by the store and directly it is the same to the byte, whoever is missing. Only the engines are left out.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.file_engine import FileEngine
from tests.members import numbered

from tandem.config import Config
from tandem.rpc.clients import CheckpointClient, LearnerClient, RolloutClient
from tandem.rpc.server import RunningServer, serve
from tandem.types import AdapterRef, PublishKind
from tandem_checkpoint_manager.main import start as start_manager
from tandem_controller.fleet import Fleet
from tandem_controller.services import Services, publish, push
from tandem_learner.main import start as start_learner
from tandem_rollout.base_model import read_base_model
from tandem_rollout.main import build_replica
from tandem_rollout.servicer import SERVICE, RolloutServicer

ROOT = Path(__file__).parents[2]


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config.model_validate(
        {
            "model": {"path": str(ROOT / "models/tiny-qwen3vl")},
            "learner": {"lora": {"rank": 4}},
            "checkpoint": {"url": str(tmp_path / "store")},
            "sync": {"transport": "grpc", "folder": str(tmp_path / "memory")},
        }
    )


@asynccontextmanager
async def replica(config: Config) -> AsyncIterator[tuple[FileEngine, RunningServer]]:
    engine: Any = FileEngine()
    built = build_replica(config, engine, read_base_model(config.model.path))
    server = await serve(RolloutServicer(built).register, [SERVICE])
    yield engine, server
    await server.stop(0)
    await built.close()


def files(folder: Path | None) -> dict[str, bytes]:
    assert folder is not None
    return {path.name: path.read_bytes() for path in folder.iterdir()}


async def test_both_ways_give_the_same_bytes_and_one_that_is_gone_or_new_is_no_hindrance(
    config: Config, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    manager, learner = await start_manager(config), await start_learner(config)
    client, checkpoints = LearnerClient(learner.address), CheckpointClient(manager.address)
    status = await client.status()
    async with AsyncExitStack() as stack:
        (first, at_first), (second, at_second), (new, at_new) = [
            await stack.enter_async_context(replica(config)) for _ in range(3)
        ]

        async def services(*servers: RunningServer) -> Services:
            fleet = Fleet(config.rollout, config.model.probe_tolerance, lambda member: RolloutClient(member.address))
            stack.push_async_callback(fleet.close)
            for member in numbered([server.address for server in servers]):
                await fleet.admit(member)
            given = (status.adapter_config_json, status.base_model, True)
            return Services(fleet, client, checkpoints, *given)

        both = await services(at_first, at_second)
        await push(both, 0)
        directly = files(first.folder)
        assert directly == files(second.folder) and "directly" not in caplog.text
        published, _ = await checkpoints.get(PublishKind.ADAPTER, 0)
        assert files(Path(published.url)) == directly
        await both.fleet.load(published)  # is served already
        await (await services(at_new)).fleet.load(published)  # one that was started since
        assert files(new.folder) == directly

        await at_second.stop(0)
        await push(both, 0)
        assert [member.address for member in both.fleet.members] == [at_first.address]
        assert re.search(f"{at_second.address}: cannot load .* from the store: .*; nor directly: learner", caplog.text)
        assert (await publish(both, PublishKind.ADAPTER, 0)) == published
        await (await services(at_first)).fleet.load(AdapterRef(0, "", "", "", "", 0))
        await asyncio.gather(push(await services(at_first), 0))
        assert files(first.folder) == directly
    await client.close()
    await checkpoints.close()
    await learner.stop()
    await manager.stop()
