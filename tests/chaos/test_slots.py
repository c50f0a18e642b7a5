"""Room on a real Ray cluster: a node is left one half of a slot at a time, and room comes first."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.util.placement_group import placement_group_table

from tandem.cluster import Deployment, find, ray_session
from tandem.cluster.host import ServiceHost, result
from tandem.config import Config
from tandem.rpc.door import Door
from tandem.rpc.hosted import Order
from tandem.types import Identity, NotFound, Role, Unavailable, UserError
from tests.nodes import RayCluster, ray_cluster

ROOT = Path(__file__).parents[2]


def config_of(cluster: RayCluster, folder: Path, **options: Any) -> Config:
    return Config.model_validate(
        {
            "model": {"path": str(ROOT / "models/tiny-qwen3vl")},
            "run": {"dir": str(folder), "name": "slots"},
            "rollout": {"engine": {"kind": "simulated"}},
            "cluster": {"address": cluster.address, "cpus_per_worker": 1, "start_timeout_s": 120, **options},
            "checkpoint": {"url": str(folder / "store")},
        }
    )


def slots() -> int:
    return sum(group["state"] != "REMOVED" for group in placement_group_table().values())


def leaves_by_halves(cluster: RayCluster, deployment: Deployment) -> None:
    rank, replica = deployment.start_learner(1), deployment.start_rollout(0)
    assert rank.node == replica.node and slots() == 1
    [process] = cluster.services("learner", 0)
    deployment.avoid(rank.node)
    moved = deployment.start_rollout(0)
    assert moved.node != rank.node and slots() == 2
    assert deployment.wait_death(2) is None
    assert process.is_running() and deployment.ranks == (rank,), "the rank lives on"
    [process] = cluster.services("rollout", 0)
    assert deployment.start_learner(1).node == moved.node and slots() == 1
    assert process.is_running() and deployment.rollouts == (moved,), "so does the replica"


def finds_room_first(deployment: Deployment, impatient: Config) -> None:
    before, patient = deployment.ranks, deployment._config
    deployment._config = impatient
    with pytest.raises(Unavailable, match="no room for slot"):
        deployment.start_learner(7)
    deployment._config = patient
    assert deployment.ranks == before and slots() == 1
    assert deployment.wait_death(1) is None


def keeps_to_its_gpus(config: Config) -> None:
    deployment = Deployment(config, "gpus", "", "")
    with pytest.raises(UserError, match=r"a learner of 3 ranks needs 3 GPUs, .* but cluster.gpus is 2"):
        deployment.start_learner(3)
    with pytest.raises(UserError, match=r"rollout 2 needs 3 GPUs, .* but cluster.gpus is 2"):
        deployment.start_rollout(2)
    deployment.close()


def says_who_is_lost() -> None:
    order = Order("nothing", "{}", "127.0.0.1", Door(Identity(Role.ROLLOUT, 0, 1)))
    actor: Any = ServiceHost.options(num_cpus=0).remote(order, "")
    with pytest.raises(Unavailable, match="not done in time"):
        result(actor.address.remote(), time.monotonic() - 1, "its address")
    ray.kill(actor)
    with pytest.raises(Unavailable, match="its address: "):
        result(actor.address.remote(), time.monotonic() + 60, "its address")


@pytest.mark.ray
@pytest.mark.slow
def test_slots_on_several_nodes(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="td-") as short, ray_cluster(Path(short), workers=2) as cluster:
        config = config_of(cluster, tmp_path)
        with ray_session(config.cluster, 1) as host:
            deployment = Deployment(config, "slots", host, "")
            try:
                leaves_by_halves(cluster, deployment)
                finds_room_first(deployment, config_of(cluster, tmp_path, start_timeout_s=5))
            finally:
                deployment.close()
            assert slots() == 0
            with pytest.raises(Unavailable, match="the run ends"):
                deployment.start_checkpoint()
            with pytest.raises(NotFound):
                find("slots", "checkpoint_manager")
            assert Deployment(config, "slots", host, "").controller.generation == deployment.controller.generation + 1
            keeps_to_its_gpus(config_of(cluster, tmp_path, gpus=2))
            says_who_is_lost()
