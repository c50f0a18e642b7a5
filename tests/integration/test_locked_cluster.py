"""A run that joins a Ray cluster, and whose recipe says nothing of security, is locked with a secret of its own."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import pytest
from tests.nodes import ray_cluster

from tandem.cluster import Deployment, deployed
from tandem.config import Config
from tandem.rpc.clients import RolloutClient
from tandem.rpc.door import OPEN, Door
from tandem.rpc.keyring import Keyring
from tandem.types import Forbidden, Identity, Member, Role, RolloutStatus, StaleRequest

ROOT = Path(__file__).parents[2]


async def asked(door: Door, member: Member) -> RolloutStatus:
    client = RolloutClient(member.address, door, member.identity)
    try:
        return await client.status()
    finally:
        await client.close()


async def who_gets_in(deployment: Deployment, first: Member, second: Member) -> None:
    keyring, controller = deployment.keyring, Identity(Role.CONTROLLER, 0, 1)
    assert (await asked(keyring.door(controller), second)).healthy
    for door, said in (
        (OPEN, "no token came with the call"),
        (Door(controller, Keyring("token", secret=b"a guess" * 9).keys(Role.CONTROLLER)), "a wrong token"),
        (keyring.door(Identity(Role.ROLLOUT, 1, 1)), "the rollout may not call this"),
        (Door(controller, keyring.keys(Role.OPERATOR)), "the operator says that it is controller"),
    ):
        with pytest.raises(Forbidden, match=said):
            await asked(door, second)
    with pytest.raises(StaleRequest, match=r"meant for rollout 0 \(generation 1\), but rollout 0 \(generation 2\)"):
        await asked(keyring.door(controller), Member(first.identity, second.address))


@pytest.mark.ray
def test_a_run_on_a_cluster_that_was_joined_is_locked(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="td-") as short, ray_cluster(Path(short), workers=1) as cluster:
        config = Config.model_validate(
            {
                "model": {"path": str(ROOT / "models/tiny-qwen3vl")},
                "run": {"dir": str(tmp_path)},
                "rollout": {"engine": {"kind": "simulated"}},
                "cluster": {"address": cluster.address, "cpus_per_worker": 1},
                "checkpoint": {"url": str(tmp_path / "store")},
            }
        )
        with deployed(config, "locked", training=False) as deployment:
            (first,) = deployment.rollouts
            second = deployment.start_rollout(0)
            assert second.identity.generation == first.identity.generation + 1
            asyncio.run(who_gets_in(deployment, first, second))
            (service,) = cluster.services("rollout", 0)
            seen = [*service.cmdline(), *service.environ().values(), config.model_dump_json()]
            seen += [path.read_text(errors="replace") for path in tmp_path.rglob("*.log")]
            keys = deployment.keyring.keys(Role.ROLLOUT)
            assert not [text for text in seen if keys.token in text]
