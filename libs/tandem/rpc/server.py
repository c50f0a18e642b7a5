"""Start a gRPC server with health, reflection and the boundary interceptor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer
from grpc_reflection.v1alpha import reflection

from tandem.rpc.interceptor import Boundary
from tandem.types import UserError

# A group of 8 trajectories of 20 turns with its images stays far below this; a message above it is a mistake.
MAX_MESSAGE_BYTES = 256 * 2**20
OPTIONS = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.so_reuseport", 0),  # two servers on one port must fail, not share it
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


async def serve(
    register: Callable[[grpc.aio.Server], None], services: Sequence[str], *, host: str = "127.0.0.1", port: int = 0
) -> RunningServer:
    """Start serving. `register` adds the servicers; `services` are their full names; port 0 takes a free one.

    Raises:
        UserError: the port is taken or the host is not this machine's.
    """
    server = grpc.aio.server(interceptors=[Boundary()], options=OPTIONS)
    health = HealthServicer()
    register(server)
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    reflection.enable_server_reflection((*services, reflection.SERVICE_NAME, "grpc.health.v1.Health"), server)
    try:
        bound = server.add_insecure_port(f"{host}:{port}")
    except RuntimeError as problem:
        raise UserError(
            f"cannot listen on {host}:{port}: taken or not this machine's; choose another port, or 0 for a free one"
        ) from problem
    await server.start()
    running = RunningServer(f"{host}:{bound}", server, health, tuple(services))
    await running.set_serving(True)
    return running
