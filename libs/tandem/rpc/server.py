"""Start a gRPC server with health, reflection and the boundary interceptor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer
from grpc_reflection.v1alpha import reflection

from tandem.rpc.access import LARGEST, largest_request
from tandem.rpc.door import OPEN, Door
from tandem.rpc.interceptor import Boundary
from tandem.types import UserError

MOST_CALLS = 4096  # at once, of all callers; more are refused at once, and may come again
MOST_CONNECTIONS = 1024
OPTIONS = [
    ("grpc.max_send_message_length", LARGEST),
    ("grpc.so_reuseport", 0),  # two servers on one port must fail, not share it
    ("grpc.http2.bdp_probe", 0),  # no growing window: what nobody reads yet waits with its sender
    ("grpc.max_concurrent_streams", 1024),  # of one connection; more wait with their caller
    ("grpc.max_allowed_incoming_connections", MOST_CONNECTIONS),
    ("grpc.max_metadata_size", 16 * 2**10),  # of a call's headers; longer ones are refused
    ("grpc.absolute_max_metadata_size", 16 * 2**10),
    ("grpc.server_handshake_timeout_ms", 10_000),  # for whoever connects and then says nothing
    ("grpc.keepalive_time_ms", 60_000),  # a connection whose other end is gone ends
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),  # more pings than that end the connection
    ("grpc.http2.max_ping_strikes", 3),
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
    services: tuple[str, ...]

    async def serve(self, register: Callable[[grpc.aio.Server], None]) -> RunningServer:
        """Start serving. `register` adds the servicers."""
        health = HealthServicer()
        register(self.server)
        health_pb2_grpc.add_HealthServicer_to_server(health, self.server)
        names = (*self.services, reflection.SERVICE_NAME, "grpc.health.v1.Health")
        reflection.enable_server_reflection(names, self.server)
        await self.server.start()
        running = RunningServer(self.address, self.server, health, self.services)
        await running.set_serving(True)
        return running

    async def close(self) -> None:
        """Give the port back, having served nothing."""
        await self.server.start()  # gRPC frees the port of a server only if it ever ran
        await self.server.stop(None)


async def listen(services: Sequence[str], *, host: str = "127.0.0.1", port: int = 0, door: Door = OPEN) -> Listener:
    """Take a port for the services of these full names; 0 takes a free one.

    Raises:
        UserError: the port is taken or the host is not this machine's; or, as `Door.bind`, it would be open to all.
    """
    limit = ("grpc.max_receive_message_length", largest_request(frozenset(services)))
    server = grpc.aio.server(
        interceptors=[Boundary(door)], options=[*OPTIONS, limit], maximum_concurrent_rpcs=MOST_CALLS
    )
    try:
        bound = door.bind(server, host, port)
    except RuntimeError as problem:
        raise UserError(
            f"cannot listen on {host}:{port}: taken or not this machine's; choose another port, or 0 for a free one"
        ) from problem
    return Listener(f"{host}:{bound}", server, tuple(services))


async def serve(
    register: Callable[[grpc.aio.Server], None],
    services: Sequence[str],
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    door: Door = OPEN,
) -> RunningServer:
    """`listen`, then `Listener.serve`. Raises as `listen`."""
    return await (await listen(services, host=host, port=port, door=door)).serve(register)
