"""The live deployment on a real Ray cluster of several nodes: what dies is told and replaced, nodes come and go."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tandem.cluster import Deployment, find, ray_session
from tandem.cluster.registry import take_over
from tandem.config import Config
from tandem.rpc.clients import CheckpointClient, RolloutClient
from tandem.types import Death, Forbidden, Identity, NotFound, PublishKind, Role, StaleRequest, Unavailable, UserError
from tests.nodes import RayCluster, ray_cluster

MODEL = Path(__file__).parents[2] / "models/tiny-qwen3vl"
ME = Identity(Role.CONTROLLER, 0, 1)
SOON_S = 60.0
pytestmark = [pytest.mark.ray, pytest.mark.slow]


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with ray_cluster(Path(os.environ["HOME"]) / "n", workers=2, gpus=1) as cluster:
        yield cluster


@pytest.fixture
def config(cluster: RayCluster, tmp_path: Path) -> Config:
    return Config.model_validate(
        {
            "model": {"path": str(MODEL)},
            "run": {"name": "faults", "dir": str(tmp_path)},
            "rollout": {"engine": {"kind": "simulated"}},
            "checkpoint": {"url": str(tmp_path / "store")},
            "cluster": {"address": cluster.address, "start_timeout_s": 120, "gpus": 8, "cpus_per_worker": 1},
        }
    )


@contextmanager
def live(config: Config, run: str = "faults") -> Iterator[Deployment]:
    """A deployment without services."""
    logs = Path(config.run.dir) / config.run.name / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    with ray_session(config.cluster, 1) as host:
        deployment = Deployment(config, run, host, str(logs))
        try:
            yield deployment
        finally:
            deployment.close()


def death(deployment: Deployment) -> Death:
    told = deployment.wait_death(SOON_S)
    assert told is not None
    return told


async def test_a_dead_replica_is_named_and_its_successor_is_another(cluster: RayCluster, config: Config) -> None:
    with live(config) as deployment:
        first = deployment.start_rollout(0)
        assert (first.identity, first.node in ("w1", "w2")) == (Identity(Role.ROLLOUT, 0, 1), True)
        [process] = cluster.services("rollout", 0)
        assert cluster.node_of(process).name == first.node

        process.kill()
        told = death(deployment)
        assert (told.member, told.why) == (first, "killed by SIGKILL")
        assert deployment.rollouts == ()

        second = deployment.start_rollout(0)
        assert second.identity == Identity(Role.ROLLOUT, 0, 2)
        assert deployment.rollouts == (second,)
        assert find("faults", "rollout") == (second.address,)
        door = deployment.keyring.door(ME)
        late = RolloutClient(second.address, door, first.identity)
        with pytest.raises(StaleRequest):
            await late.status()
        await late.close()
        assert deployment.wait_death(0.1) is None, "told once"


async def test_the_manager_comes_back_and_takes_its_lease_over(cluster: RayCluster, config: Config) -> None:
    with live(config) as deployment:
        deployment.start_checkpoint()
        [process] = cluster.services("checkpoint_manager")
        process.send_signal(signal.SIGSEGV)
        told = death(deployment)
        assert told.why == "killed by SIGSEGV"
        assert told.last_lines[0].startswith("Fatal Python error: Segmentation fault")

        member = deployment.start_checkpoint()
        assert (member.identity.generation, member.node) == (2, "head")
        client = CheckpointClient(member.address, deployment.keyring.door(ME), member.identity)
        assert await client.list(PublishKind.ADAPTER) == ()
        await client.close()


def test_who_hangs_is_replaced_too(cluster: RayCluster, config: Config) -> None:
    with live(config) as deployment:
        deployment.start_checkpoint()
        [process] = cluster.services("checkpoint_manager")
        process.suspend()
        assert deployment.start_checkpoint().identity.generation > 1
        [process] = cluster.services("checkpoint_manager")
        cluster.host_of(process).suspend()
        assert deployment.start_checkpoint().identity.generation > 2
        assert len(cluster.services("checkpoint_manager")) == 1
        assert deployment.wait_death(0.1) is None, "whom we end ourselves has not died"


def test_an_actor_that_is_killed_takes_its_service_along(cluster: RayCluster, config: Config) -> None:
    with live(config) as deployment:
        deployment.start_checkpoint()
        [process] = cluster.services("checkpoint_manager")
        cluster.host_of(process).kill()
        told = death(deployment)
        assert "host process on node head was killed or crashed; the exit status is unknown" in told.why
        process.wait(SOON_S)


def test_a_lost_node_is_named_and_its_slot_comes_back_where_there_is_room(cluster: RayCluster, config: Config) -> None:
    with live(config) as deployment:
        members = [deployment.start_rollout(index) for index in range(2)]
        assert sorted(member.node for member in members) == ["w1", "w2"]
        lost = members[0]
        cluster[lost.node].kill()
        told = death(deployment)
        assert told.member == lost
        assert told.why == f"node lost: node {lost.node} is no longer part of the Ray cluster"

        found = []
        waiting = threading.Thread(target=lambda: found.append(deployment.start_rollout(0)))
        waiting.start()  # no room: the other node's one GPU is taken
        cluster.add("w3", gpus=1)
        waiting.join(SOON_S)
        assert [(member.identity.generation, member.node) for member in found] == [(lost.identity.generation + 1, "w3")]
        cluster.add(lost.node, gpus=1)


def test_scaling_up_waits_for_a_node_and_says_so(cluster: RayCluster, config: Config) -> None:
    with live(config) as deployment:
        full = len(deployment.nodes()) - 1  # the head has no GPU
        for index in range(full):
            deployment.start_rollout(index)
        soon = config.model_copy(update={"cluster": config.cluster.model_copy(update={"start_timeout_s": 2})})
        deployment._config = soon  # the same deployment, less patient
        with pytest.raises(Unavailable, match=rf"no room for slot {full}: it takes 1 CPU and 1 GPU; .* 0 GPU free"):
            deployment.start_rollout(full)
        deployment._config = config
        cluster.add("w4", gpus=1)  # what an autoscaler does, for the slot is asked for still
        assert deployment.start_rollout(full).node == "w4"
        deployment.stop_rollout(full)
        assert [member.identity.index for member in deployment.rollouts] == list(range(full))
        assert cluster.services("rollout", full) == []
        cluster["w4"].kill()


def test_nothing_new_goes_where_it_is_to_be_avoided(cluster: RayCluster, config: Config) -> None:
    with live(config) as deployment:
        assert {"head", "w1", "w2"} <= set(deployment.nodes())
        member = deployment.start_rollout(0)
        deployment.avoid(member.node)
        again = deployment.start_rollout(0)
        assert again.node != member.node
        with pytest.raises(NotFound, match="no node named w9; it has head, w"):
            deployment.avoid("w9")


async def test_two_runs_side_by_side_are_strangers(cluster: RayCluster, config: Config, tmp_path: Path) -> None:
    other = config.model_copy(update={"checkpoint": config.checkpoint.model_copy(update={"url": str(tmp_path / "b")})})
    with live(config, "run-a") as one:
        two = Deployment(other, "run-b", "", "")
        try:
            mine, theirs = one.start_checkpoint(), two.start_checkpoint()
            [process] = cluster.services("checkpoint_manager", run="faults")  # the other's log is elsewhere
            process.kill()
            assert death(one).member == mine
            assert two.wait_death(0.1) is None
            assert find("run-b", "checkpoint_manager") == (theirs.address,)
            client = CheckpointClient(theirs.address, one.keyring.door(ME))
            with pytest.raises(Forbidden, match="token"):
                await client.list(PublishKind.ADAPTER)
            await client.close()
        finally:
            two.close()


DRIVER = """
import sys, json
from tandem.cluster import Deployment, ray_session
from tandem.config import Config
config = Config.model_validate_json(sys.stdin.readline())
with ray_session(config.cluster, 1) as host:
    print(Deployment(config, "faults", host, "").start_checkpoint().address, flush=True)
    sys.stdin.readline()
"""


def test_a_dead_controllers_run_is_taken_over_and_a_living_ones_is_not(cluster: RayCluster, config: Config) -> None:
    other = subprocess.Popen([sys.executable, "-c", DRIVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert other.stdin and other.stdout
    other.stdin.write(config.model_dump_json() + "\n")
    other.stdin.flush()
    try:
        assert ":" in other.stdout.readline(), "it did not start"
        with ray_session(config.cluster, 1):
            with pytest.raises(UserError, match=f"run faults is on this cluster already: process {other.pid} at "):
                take_over("faults")
            cluster.host_of(
                cluster.services("checkpoint_manager")[0]
            ).suspend()  # so that it outlives its driver for a while
            other.kill()
            other.wait()
            take_over("faults")
            with pytest.raises(NotFound):
                find("faults", "checkpoint_manager")
    finally:
        other.kill()
        other.communicate()
    with live(config) as deployment:
        assert deployment.start_checkpoint().identity.generation > 1, "counted on by the cluster, not by the controller"


def test_all_ranks_are_of_one_generation_at_any_world_size(cluster: RayCluster, config: Config) -> None:
    on_cpu = config.model_copy(update={"cluster": config.cluster.model_copy(update={"gpus": 0})})
    with live(on_cpu) as deployment:
        deployment.start_learner(2)
        first = deployment.ranks[0].identity.generation
        cluster.services("learner", 1)[0].kill()
        told = death(deployment)
        assert (told.member.identity, told.why) == (Identity(Role.LEARNER, 1, first), "killed by SIGKILL")
        leader = deployment.start_learner(1)
        assert deployment.ranks == (leader,)
        assert (leader.identity, deployment.learner) == (Identity(Role.LEARNER, 0, first + 1), leader)
        assert len(cluster.services("learner")) == 1
        assert deployment.wait_death(0.1) is None
