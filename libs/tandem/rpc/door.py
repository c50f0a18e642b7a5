"""How a process meets others: who it says it is, and whom it lets in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import grpc

from tandem.types import Identity, Role


@dataclass(frozen=True, slots=True)
class Door:
    """A process's own end of all its channels and ports."""

    me: Identity

    def connect(self, address: str, options: Any) -> grpc.aio.Channel:
        """A channel to host:port."""
        return grpc.aio.insecure_channel(address, options=options)

    def bind(self, server: grpc.aio.Server, address: str) -> int:
        """Have the server listen at host:port; the port. Raises RuntimeError where it cannot."""
        return server.add_insecure_port(address)


OPEN = Door(Identity(Role.OPERATOR))  # of tests and of services started alone, on loopback
