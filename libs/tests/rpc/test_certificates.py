"""Mutual TLS over real gRPC: a role is what its certificate says, and what is wrong with one is one clear line."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from tandem.rpc.certificates import Certificate, load
from tandem.rpc.certs import certs, make_certificates
from tandem.rpc.clients import CheckpointClient, LearnerClient
from tandem.rpc.door import Door
from tandem.rpc.gen.checkpoint.v1 import checkpoint_pb2, checkpoint_pb2_grpc
from tandem.rpc.keys import Keys
from tandem.rpc.server import serve
from tandem.types import Forbidden, Identity, PublishKind, Role, TandemError, Unavailable, UserError

SERVICE = "tandem.checkpoint.v1.CheckpointService"
YEAR = timedelta(days=365)
MANAGER, CONTROLLER = Role.CHECKPOINT_MANAGER, Role.CONTROLLER


class Checkpoint(checkpoint_pb2_grpc.CheckpointServiceServicer):
    async def GetStatus(self, request, context):
        return checkpoint_pb2.GetStatusResponse(url="/store")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("certs")
    make_certificates(made, YEAR)
    return made


@pytest.fixture
def own(folder: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    return Path(shutil.copytree(folder, tmp_path / "own"))


def door(role: Role, folder: Path) -> Door:
    return Door(Identity(role), Keys("mtls", tls_dir=str(folder)))


class Unchecked(Door):
    """Of one who does not look at its own certificate first, as anyone may."""

    def _certificate(self):
        path = Path(self.keys.tls_dir)
        files = ("ca.pem", f"{self.me.role}.pem", f"{self.me.role}.key")
        return Certificate(*((path / file).read_bytes() for file in files))


def unchecked(role: Role, folder: Path) -> Door:
    return Unchecked(Identity(role), Keys("mtls", tls_dir=str(folder)))


@asynccontextmanager
async def serving(own: Door) -> AsyncIterator[str]:
    running = await serve(
        lambda s: checkpoint_pb2_grpc.add_CheckpointServiceServicer_to_server(Checkpoint(), s), [SERVICE], door=own
    )
    yield running.address
    await running.stop(0)


async def asked(address: str, own: Door) -> str:
    client = CheckpointClient(address, own)
    try:
        return (await client.status(10)).url
    finally:
        await client.close()


async def refused(address: str, own: Door) -> str:
    with pytest.raises(Forbidden) as caught:
        await asked(address, own)
    assert "\n" not in str(caught.value) and f"checkpoint manager at {address}: " in str(caught.value)
    return str(caught.value)


async def test_a_role_is_what_its_certificate_says(folder: Path) -> None:
    async with serving(door(MANAGER, folder)) as address:
        assert await asked(address, door(CONTROLLER, folder)) == "/store"
        assert await asked(address, door(Role.OPERATOR, folder)) == "/store"
        assert "GetStatus: the rollout may not call this" in await refused(address, door(Role.ROLLOUT, folder))
        client = CheckpointClient(address, door(Role.LEARNER, folder))
        with pytest.raises(Forbidden, match="the learner may not call this"):
            await client.delete(PublishKind.ADAPTER, 1)
        await client.close()


async def test_who_says_another_role_than_its_certificate(own: Path) -> None:
    async with serving(door(MANAGER, own)) as address:
        for ending in ("pem", "key"):
            shutil.copy(own / f"operator.{ending}", own / f"controller.{ending}")
        assert "the operator says that it is controller 0" in await refused(address, unchecked(CONTROLLER, own))
        with pytest.raises(UserError, match=r"controller.pem: must name controller.tandem and no other role"):
            await asked(address, door(CONTROLLER, own))


async def test_a_server_with_another_roles_certificate_is_not_believed(folder: Path) -> None:
    async with serving(door(Role.ROLLOUT, folder)) as address:
        assert "no TLS connection" in await refused(address, door(CONTROLLER, folder))
        client = LearnerClient(address, door(CONTROLLER, folder))
        with pytest.raises(Forbidden, match="no TLS connection"):
            await client.status()
        await client.close()


@pytest.mark.parametrize("whose", ["server", "client"])
async def test_a_certificate_that_has_expired(folder: Path, own: Path, whose: str) -> None:
    make_certificates(own, timedelta(days=-1))  # of the same authority
    roles = (unchecked(MANAGER, own), door(CONTROLLER, folder))
    if whose == "client":
        roles = (door(MANAGER, folder), unchecked(CONTROLLER, own))
    async with serving(roles[0]) as address:
        if whose == "server":
            assert "no TLS connection" in await refused(address, roles[1])
        else:  # a server that refuses one only closes the connection: the line below is how people hear of it
            with pytest.raises(Unavailable, match="Socket closed"):
                await asked(address, roles[1])
    with pytest.raises(UserError, match=r"controller.pem: is valid from .* which is not now; renew it"):
        load(str(own), CONTROLLER)


@pytest.mark.parametrize("whose", ["server", "client"])
async def test_a_certificate_of_another_authority(folder: Path, tmp_path: Path, whose: str) -> None:
    make_certificates(tmp_path, YEAR)
    roles = (MANAGER, tmp_path), (CONTROLLER, folder)
    if whose == "client":
        roles = (MANAGER, folder), (CONTROLLER, tmp_path)
    async with serving(door(*roles[0])) as address:
        assert "no TLS connection" in await refused(address, door(*roles[1]))
    shutil.copy(folder / "ca.pem", tmp_path / "ca.pem")
    with pytest.raises(UserError, match=r"controller.pem: was not issued by ca.pem"):
        load(str(tmp_path), CONTROLLER)


async def test_without_a_certificate_there_is_no_connection(folder: Path) -> None:
    async with serving(door(MANAGER, folder)) as address:
        with pytest.raises(TandemError) as caught:
            await asked(address, Door(Identity(CONTROLLER)))
        assert isinstance(caught.value, Forbidden | Unavailable) and "\n" not in str(caught.value)
    async with serving(Door(Identity(MANAGER))) as address:
        assert "no TLS connection" in await refused(address, door(CONTROLLER, folder))


@pytest.mark.parametrize("what", ["ca.pem", "learner.pem", "learner.key"])
def test_files_that_are_missing_or_are_none(own: Path, what: str) -> None:
    (own / what).write_text("nothing of the kind")
    with pytest.raises(UserError, match="is no PEM") as caught:
        load(str(own), Role.LEARNER)
    assert "\n" not in str(caught.value)
    (own / what).unlink()
    with pytest.raises(UserError, match=rf"{what} cannot be read .*`tandem certs DIR` makes"):
        load(str(own), Role.LEARNER)


def test_a_key_of_another_certificate(own: Path) -> None:
    shutil.copy(own / "rollout.key", own / "learner.key")
    with pytest.raises(UserError, match=r"learner.key: is not the key of learner.pem"):
        load(str(own), Role.LEARNER)


def test_making_them_again_keeps_the_authority(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ca, old = (own / "ca.pem").read_bytes(), (own / "learner.pem").read_bytes()
    certs(own, days=3)
    assert (own / "ca.pem").read_bytes() == ca and (own / "learner.pem").read_bytes() != old
    assert load(str(own), Role.LEARNER) and "keep ca.key elsewhere" in capsys.readouterr().out
    assert {path.name for path in own.iterdir() if path.stat().st_mode & 0o077} == {
        "ca.pem",
        *(f"{role}.pem" for role in Role),
    }
    (own / "ca.key").unlink()
    with pytest.raises(UserError, match=r"ca.key: is missing beside the other"):
        certs(own)


async def test_connections_that_say_nothing_or_rubbish_end(folder: Path) -> None:
    async with serving(door(MANAGER, folder)) as address:
        host, _, port = address.rpartition(":")
        for data in (b"", b"GET / HTTP/1.1\r\n\r\n", bytes(range(256)) * 8):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(data)
            writer.write_eof()
            await asyncio.wait_for(reader.read(), 20)
            writer.close()
        assert await asked(address, door(CONTROLLER, folder)) == "/store"
