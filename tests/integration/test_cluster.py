"""Services in Ray actors on a real local Ray: found by name, stopped in order, told apart by run."""

import socket
import time
from pathlib import Path

import pytest

from tandem.cluster import find, ray_session
from tandem.cluster.host import ServiceHost, result
from tandem.cluster.registry import NAMESPACE, actor_name
from tandem.config import Config
from tandem.rpc.clients import CheckpointClient
from tandem.rpc.door import Door
from tandem.rpc.hosted import Order
from tandem.types import Identity, NotFound, PublishKind, Role, Unavailable, UserError


def soon() -> float:
    """A deadline from now: a constant would be made when the tests are collected, and pass while others run."""
    return time.monotonic() + 120


@pytest.mark.ray
async def test_a_hosted_service_is_found_and_answers_and_its_mistakes_keep_their_kind(tmp_path: Path) -> None:
    store = {"model": {"path": str(tmp_path)}, "checkpoint": {"url": str(tmp_path / "store")}}
    config = Config.model_validate(store)
    with ray_session(config.cluster, bundles=1) as host:
        assert host == "127.0.0.1"
        options = {"namespace": NAMESPACE, "num_cpus": 0, "resources": {"head_mem": 0.1}}

        def hosted(index: int):
            name = actor_name("run-a", "checkpoint_manager", index)
            actor = ServiceHost.options(name=name, **options)
            door = Door(Identity(Role.CHECKPOINT_MANAGER, index))
            order = Order("tandem_checkpoint_manager.main", config.model_dump_json(), host, door)
            return actor.remote(order, str(tmp_path))

        manager = hosted(0)
        address = result(manager.start.remote(), soon(), "start").address
        assert find("run-a", "checkpoint_manager") == (address,)
        client = CheckpointClient(address)
        assert await client.list(PublishKind.ADAPTER) == ()
        with pytest.raises(NotFound, match="no adapter is published"):
            await client.get(PublishKind.ADAPTER)
        await client.close()

        port = int(address.rpartition(":")[2])
        with pytest.raises(UserError, match=f"cannot listen on 127.0.0.1:{port}"):
            result(hosted(1).start.remote(port=port), soon(), "start")
        with pytest.raises(NotFound, match="run run-b has no service 'rollout' on this cluster"):
            find("run-b", "rollout")
        result(manager.stop.remote(), soon(), "stop")


@pytest.mark.ray
def test_a_local_ray_that_does_not_start_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TANDEM_RAY_TEMP_DIR", str(tmp_path / "file/ray"))
    config = Config.model_validate({"model": {"path": str(tmp_path)}})
    with (
        pytest.raises(Unavailable, match=r"Ray did not start here .*try again"),
        ray_session(config.cluster, bundles=1),
    ):
        pass


def test_a_cluster_that_is_not_there_is_one_line_at_once(tmp_path: Path) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        cluster = {"address": f"127.0.0.1:{nobody.getsockname()[1]}"}
        config = Config.model_validate({"model": {"path": str(tmp_path)}, "cluster": cluster})
        with (
            pytest.raises(UserError, match=r"no usable Ray cluster there \(.*refused\); start one"),
            ray_session(config.cluster, bundles=1),
        ):
            pass
