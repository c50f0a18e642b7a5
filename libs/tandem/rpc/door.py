"""How a process meets others: who it is, how it proves that, and whom it lets in."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import grpc

from tandem.rpc import certificates
from tandem.rpc.errors import Unproven
from tandem.rpc.keys import NO_KEYS, REMEDY, Keys
from tandem.types import Identity, Role, UserError

Metadata: TypeAlias = Mapping[str, str | bytes]
TOKEN_KEY = "authorization"
BEARER = "Bearer "


@dataclass(frozen=True, slots=True)
class Door:
    """A process's own end of all its channels and ports."""

    me: Identity
    keys: Keys = NO_KEYS

    def connect(self, address: str, to: Role, options: Sequence[tuple[str, Any]]) -> grpc.aio.Channel:
        """A channel to host:port, where a process of that role serves. Raises UserError for unusable certificates."""
        if self.keys.mode != "mtls":
            return grpc.aio.insecure_channel(address, options=options)
        name = ("grpc.ssl_target_name_override", certificates.server_name(to))
        return grpc.aio.secure_channel(address, self._certificate().for_channel(), options=[*options, name])

    def proof(self) -> tuple[tuple[str, str], ...]:
        """What each call carries in its metadata to prove the role."""
        return ((TOKEN_KEY, BEARER + self.keys.token),) if self.keys.mode == "token" else ()

    def bind(self, server: grpc.aio.Server, host: str, port: int) -> int:
        """Have the server listen; the port.

        Raises:
            RuntimeError: it cannot.
            UserError: anyone could call from another machine; or the certificates are unusable.
        """
        if self.keys.mode == "mtls":
            return server.add_secure_port(f"{host}:{port}", self._certificate().for_port())
        if self.keys.mode == "none" and not self.keys.insecure and not is_loopback(host):
            raise UserError(f"{host}:{port} would be open to all who can reach it: {REMEDY}")
        return server.add_insecure_port(f"{host}:{port}")

    def proven(self, metadata: Metadata, peer: Mapping[str, Any]) -> Role | None:
        """The role that a caller has proven; None where nothing is asked for. `peer` is gRPC's `auth_context()`.

        Raises:
            Unproven: it has proven none.
        """
        if self.keys.mode == "none":
            return None
        if self.keys.mode == "mtls":
            if (role := certificates.role_of(peer)) is None:
                raise Unproven("the caller's certificate names no role of Tandem; `tandem certs` makes ones that do")
            return role
        said = metadata.get(TOKEN_KEY, "")
        role = self.keys.holder_of(said.removeprefix(BEARER)) if isinstance(said, str) and said else None
        if role is None:
            what = "a wrong" if said else "no"
            raise Unproven(f"{what} token came with the call; give both sides the same security.secret_file")
        return role

    def _certificate(self) -> certificates.Certificate:
        return certificates.load(self.keys.tls_dir, self.me.role)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a port there."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


OPEN = Door(Identity(Role.OPERATOR))  # of tests, and of services started alone, on loopback
