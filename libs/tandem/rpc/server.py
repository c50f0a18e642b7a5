"""Start a gRPC server with health, reflection and the boundary interceptor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer
from grpc_reflection.v1alpha import reflection

from tandem.rpc.door import OPEN, Door
from tandem.rpc.interceptor import Boundary
from tandem.types import UserError

# A group of 8 trajectories of 20 turns with its images stays far below this; a message above it is a mistake.
MAX_MESSAGE_BYTES = 256 * 2**20
OPTIONS = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.so_reuseport", 0),  # two servers on one port must fail, not share it
    (
        "grpc.http2.bdp_probe",
        0,
    ),  # no growing window: what nobody reads yet waits with its sender
]


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server that listens at `address` (host:port)."""

    address: str
    server: grpc.aio.Server
    health: HealthServicer
    services: tuple[str, ...]

    async def set_serving(self, serving: bool) -> None:
        """Tell the health service."""
        status = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        for name in ("", *self.services):
            await self.health.set(name, status)

    async def stop(self, grace_s: float = 5.0) -> None:
        """Refuse new calls, give running ones `grace_s` seconds, then end."""
        await self.set_serving(False)
        await self.server.stop(grace_s)


@dataclass(frozen=True, slots=True)
class Listener:
    """A port that is ours, `address` (host:port), before anything is served there: callers wait."""

    address: str
    server: grpc.aio.Server

    async def serve(self, register: Callable[[grpc.aio.Server], None], services: Sequence[str]) -> RunningServer:
        """Start serving. `register` adds the servicers; `services` are their full names."""
        health = HealthServicer()
        register(self.server)
        health_pb2_grpc.add_HealthServicer_to_server(health, self.server)
        reflection.enable_server_reflection((*services, reflection.SERVICE_NAME, "grpc.health.v1.Health"), self.server)
        await self.server.start()
        running = RunningServer(self.address, self.server, health, tuple(services))
        await running.set_serving(True)
        return running

    async def close(self) -> None:
        """Give the port back, having served nothing."""
        await self.server.start()  # gRPC frees the port of a server only if it ever ran
        await self.server.stop(None)


async def listen(host: str = "127.0.0.1", port: int = 0, door: Door = OPEN) -> Listener:
    """Take a port; 0 takes a free one.

    Raises:
        UserError: the port is taken or the host is not this machine's.
    """
    server = grpc.aio.server(interceptors=[Boundary(door.me)], options=OPTIONS)
    try:
        bound = door.bind(server, f"{host}:{port}")
    except RuntimeError as problem:
        raise UserError(
            f"cannot listen on {host}:{port}: taken or not this machine's; choose another port, or 0 for a free one"
        ) from problem
    return Listener(f"{host}:{bound}", server)


async def serve(
    register: Callable[[grpc.aio.Server], None],
    services: Sequence[str],
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    door: Door = OPEN,
) -> RunningServer:
    """`listen`, then `Listener.serve`. Raises as `listen`."""
    return await (await listen(host, port, door)).serve(register, services)
