"""Who is let in: by token and role, over real gRPC; and which ports may be open at all."""

from __future__ import annotations

import dataclasses
import importlib
import json
import logging
import pkgutil
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import FileDescriptor
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from tandem.config import Config, SecurityConfig, dump_yaml
from tandem.rpc import gen
from tandem.rpc.access import BY_SERVICE, rule_of
from tandem.rpc.clients import CheckpointClient
from tandem.rpc.door import OPEN, Door
from tandem.rpc.gen.checkpoint.v1 import checkpoint_pb2, checkpoint_pb2_grpc
from tandem.rpc.keyring import Keyring, open_keyring, operable, operator_door
from tandem.rpc.keys import Keys
from tandem.rpc.server import serve
from tandem.types import Forbidden, Identity, PublishKind, Role, ShardRef, UserError, exit_code

SECRET = b"s3cret-of-this-run-0123456789abcdef"
SERVICE = "tandem.checkpoint.v1.CheckpointService"
Connect = Callable[..., CheckpointClient]


class Checkpoint(checkpoint_pb2_grpc.CheckpointServiceServicer):
    async def PutShard(self, request_iterator, context):
        shards = [part.header.shard async for part in request_iterator]
        return checkpoint_pb2.PutShardResponse(shard=shards[0])

    async def GetStatus(self, request, context):
        return checkpoint_pb2.GetStatusResponse(url="/store")

    async def DeleteAdapter(self, request, context):
        return checkpoint_pb2.DeleteAdapterResponse()


@pytest.fixture
def ring() -> Keyring:
    return Keyring("token", secret=SECRET)


@pytest.fixture
async def address(ring: Keyring) -> AsyncIterator[str]:
    door = ring.door(Identity(Role.CHECKPOINT_MANAGER))
    running = await serve(
        lambda s: checkpoint_pb2_grpc.add_CheckpointServiceServicer_to_server(Checkpoint(), s), [SERVICE], door=door
    )
    yield running.address
    await running.stop(0)


@pytest.fixture
async def connect(address: str, ring: Keyring) -> AsyncIterator[Connect]:
    async with AsyncExitStack() as ends:

        def make(role: Role, keys: Keys | None = None) -> CheckpointClient:
            client = CheckpointClient(address, Door(Identity(role), keys or ring.keys(role)))
            ends.push_async_callback(client.close)
            return client

        yield make


async def test_each_role_may_do_its_own(connect: Connect) -> None:
    ref = ShardRef(PublishKind.ADAPTER, 1, 0, 1, "ab" * 32, 3)
    assert await connect(Role.LEARNER).put_shard(ref, [b"abc"]) == ref
    await connect(Role.CONTROLLER).delete(PublishKind.ADAPTER, 1)
    assert (await connect(Role.OPERATOR).status()).url == "/store"
    for role, call in (
        (Role.ROLLOUT, lambda c: c.delete(PublishKind.ADAPTER, 1)),
        (Role.LEARNER, lambda c: c.delete(PublishKind.ADAPTER, 1)),
        (Role.OPERATOR, lambda c: c.delete(PublishKind.ADAPTER, 1)),
        (Role.CONTROLLER, lambda c: c.put_shard(ref, [b"abc"])),
        (Role.ROLLOUT, lambda c: c.status()),
    ):
        with pytest.raises(Forbidden, match=f"checkpoint manager at 127.* the {role} may not call this") as caught:
            await call(connect(role))
        assert "\n" not in str(caught.value) and exit_code(caught.value) == 2


async def test_no_or_a_wrong_token(connect: Connect, ring: Keyring) -> None:
    other = Keyring("token", secret=SECRET + b"x")
    for keys, said in (
        (Keys(), "no token"),
        (other.keys(Role.CONTROLLER), "a wrong token"),
        (Keys("token"), "a wrong"),
    ):
        with pytest.raises(Forbidden, match=f"{said}.* came with the call; give both sides the same security.secret"):
            await connect(Role.CONTROLLER, keys).status()
    with pytest.raises(Forbidden, match="the operator says that it is controller 0"):
        await connect(Role.CONTROLLER, ring.keys(Role.OPERATOR)).status()


async def test_a_stranger_learns_whether_it_serves_and_nothing_more(address: str, ring: Keyring) -> None:
    token = (("authorization", f"Bearer {ring.token(Role.OPERATOR)}"),)
    async with grpc.aio.insecure_channel(address) as channel:
        health: Any = health_pb2_grpc.HealthStub(channel)
        asked = health_pb2.HealthCheckRequest(service=SERVICE)
        assert (await health.Check(asked)).status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            [reply async for reply in health.Watch(asked)]
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        reflection: Any = reflection_pb2_grpc.ServerReflectionStub(channel)  # pyright: ignore[reportArgumentType]
        listing = reflection_pb2.ServerReflectionRequest(list_services="")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            [reply async for reply in reflection.ServerReflectionInfo(iter([listing]))]
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        replies = [reply async for reply in reflection.ServerReflectionInfo(iter([listing]), metadata=token)]
        assert SERVICE in {service.name for service in replies[0].list_services_response.service}


def test_every_method_of_every_proto_has_a_rule_and_every_rule_a_method() -> None:
    files: list[FileDescriptor] = [
        importlib.import_module(module.name).DESCRIPTOR
        for module in pkgutil.walk_packages(gen.__path__, f"{gen.__name__}.")
        if module.name.endswith("_pb2")
    ]
    services = [service for file in files for service in file.services_by_name.values()]
    methods = {f"/{service.full_name}/{method.name}" for service in services for method in service.methods}
    assert len(methods) >= 18
    assert not {method for method in methods if rule_of(method) is None}
    ours = {name: rules for name, rules in BY_SERVICE.items() if name.startswith("tandem.")}
    assert {f"/{name}/{method}" for name, rules in ours.items() for method in rules} == methods
    assert not [name for name in methods if Role.ROLLOUT in (rule_of(name) or pytest.fail()).callers]  # it only answers


@pytest.mark.parametrize("method", ["", "/", "//", "/a/b/c", "/tandem.rollout.v1.RolloutService/No", "GetStatus"])
def test_what_is_no_method_has_no_rule(method: str) -> None:
    assert rule_of(method) is None


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "192.0.2.1"])
async def test_a_port_without_a_lock_is_on_loopback_alone(host: str) -> None:
    with pytest.raises(UserError, match=r"would be open to all who can reach it: set security.secret_file or "):
        await serve(lambda server: None, [], host=host)


async def test_it_may_be_elsewhere_where_that_is_written_or_locked(ring: Keyring) -> None:
    me = Identity(Role.ROLLOUT)
    for door in (ring.door(me), Keyring("none", insecure=True).door(me)):
        running = await serve(lambda server: None, [], host="0.0.0.0", door=door)
        await running.stop(0)


@pytest.mark.parametrize(
    ("security", "loopback", "mode"),
    [
        ({}, True, "none"),
        ({}, False, "token"),  # with a secret drawn
        ({"mode": "token"}, True, "token"),
        ({"mode": "none", "insecure": True}, False, "none"),
        ({"insecure": True}, False, "token"),
        ({"tls_dir": "/certs"}, True, "mtls"),
    ],
)
def test_the_mode_by_where_the_ports_are(security: dict[str, Any], loopback: bool, mode: str) -> None:
    ring = open_keyring(SecurityConfig.model_validate(security), loopback=loopback)
    assert ring.mode == mode
    if mode == "token":
        again = open_keyring(SecurityConfig.model_validate(security), loopback=loopback)
        assert len({ring.token(role) for role in Role} | {again.token(role) for role in Role}) == 2 * len(Role)


def test_what_would_be_open_to_all_is_refused() -> None:
    with pytest.raises(UserError, match=r"open to all who can reach this machine.*write security.insecure: true"):
        open_keyring(SecurityConfig(mode="none"), loopback=False)
    with pytest.raises(UserError, match="open to all who can reach"):  # a service alone, whose secret nobody could know
        open_keyring(SecurityConfig(), loopback=False, draw=False)
    with pytest.raises(UserError, match=r"token needs security.secret_file where a service is started alone"):
        open_keyring(SecurityConfig(mode="token"), loopback=True, draw=False)
    assert open_keyring(SecurityConfig(insecure=True), loopback=False, draw=False).mode == "none"


def test_a_secret_file(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    security = SecurityConfig(secret_file=str(file))
    with pytest.raises(UserError, match=f"secret_file {file}: cannot be read"):
        open_keyring(security, loopback=False)
    file.write_text("short\n")
    with pytest.raises(UserError, match="holds 5 characters, 32 are the least") as caught:
        open_keyring(security, loopback=False)
    assert "short" not in str(caught.value)
    file.write_bytes(SECRET + b"\n")
    assert open_keyring(security, loopback=False) == Keyring("token", secret=SECRET)


@pytest.mark.parametrize(
    ("security", "said"),
    [
        ({"secret_file": "s", "tls_dir": "t"}, "set one of them"),
        ({"secret_file": "s", "mode": "none"}, "secret_file is for mode token, but mode is none"),
        ({"tls_dir": "s", "mode": "token"}, "tls_dir is for mode mtls"),
        ({"mode": "mtls"}, "needs tls_dir"),
    ],
)
def test_contradictions_in_the_config(security: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        SecurityConfig.model_validate(security)


def test_keys_travel_as_json_and_hold_one_token() -> None:
    ring = Keyring("token", secret=SECRET)
    keys = ring.keys(Role.ROLLOUT)
    assert Keys(**json.loads(json.dumps(dataclasses.asdict(keys)))) == keys
    told = json.dumps(dataclasses.asdict(keys))
    assert SECRET.decode() not in told
    assert [role for role in Role if ring.token(role) in told] == [Role.ROLLOUT]


async def test_no_secret_is_shown(
    connect: Connect, ring: Keyring, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "secret").write_bytes(SECRET)
    config = Config.model_validate({"model": {"path": "m"}, "security": {"secret_file": str(tmp_path / "secret")}})
    ring = open_keyring(config.security, loopback=False)
    door = ring.door(Identity(Role.CONTROLLER))
    with caplog.at_level(logging.DEBUG), pytest.raises(Forbidden) as wrong:
        await connect(Role.CONTROLLER, Keyring("token", secret=SECRET + b"y").keys(Role.CONTROLLER)).status()
    shown = [repr(ring), str(ring), repr(door), f"{door}", repr(door.keys), dump_yaml(config), config.model_dump_json()]
    shown += [str(wrong.value), repr(wrong.value.__cause__), caplog.text]
    everything = "\n".join(shown)
    hidden = [SECRET.decode(), *(ring.token(role) for role in Role), *door.keys.admits.values()]
    assert not [text for text in hidden if text in everything]
    assert Keyring("token", secret=SECRET + b"y").token(Role.CONTROLLER) not in everything


def test_an_operator_finds_the_token_of_a_secret_that_was_drawn(tmp_path: Path) -> None:
    ring = open_keyring(SecurityConfig(), loopback=False)
    with operable(ring.keys(Role.CONTROLLER), tmp_path):
        (file,) = tmp_path.iterdir()
        assert file.stat().st_mode & 0o777 == 0o600
        door = operator_door(SecurityConfig(), tmp_path)
        assert door.keys.token == ring.token(Role.OPERATOR) and door.me.role is Role.OPERATOR
        with operable(open_keyring(SecurityConfig(), loopback=False).keys(Role.CONTROLLER), tmp_path):
            taken = file.read_text()  # by another controller
        assert taken != door.keys.token
    assert not list(tmp_path.iterdir()) and operator_door(SecurityConfig(), tmp_path) == OPEN
    given = Keyring("token", secret=SECRET)
    with operable(given.keys(Role.CONTROLLER), tmp_path):
        assert not list(tmp_path.iterdir())  # who has the file needs no token
