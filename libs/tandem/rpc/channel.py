"""One client call: protocol version, caller and callee in the metadata, a deadline, and Tandem's own exceptions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, TypeAlias
from uuid import uuid4

import grpc
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tandem.rpc.access import LARGEST, REST
from tandem.rpc.door import OPEN, Door
from tandem.rpc.errors import from_rpc_error
from tandem.rpc.fence import CALLEE_KEY, CALLER_KEY, encode_identity
from tandem.rpc.interceptor import PROTOCOL, PROTOCOL_KEY
from tandem.rpc.spans import STATUS, asked
from tandem.runtime import WAITS
from tandem.types import Identity, Role, Unavailable

OPTIONS = [
    ("grpc.max_send_message_length", LARGEST),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2000),
    ("grpc.max_metadata_size", 16 * 2**10),
    ("grpc.keepalive_time_ms", 20_000),  # a call to a machine that is gone ends long before its deadline
    ("grpc.keepalive_timeout_ms", 20_000),
]
Metadata: TypeAlias = tuple[tuple[str, str], ...]


def new_request_id() -> str:
    """Unique; make it once per intention and repeat it with every retry."""
    return uuid4().hex


class Peer:
    """A channel to the service of a role at `address` (host:port). With a `callee` its server refuses the calls unless
    it is that very process."""

    def __init__(self, role: Role, address: str, door: Door = OPEN, callee: Identity | None = None) -> None:
        self.name = f"{callee or role.replace('_', ' ')} at {address}"
        self.role, self.address = role, address
        self.metadata: Metadata = (
            (PROTOCOL_KEY, PROTOCOL),
            (CALLER_KEY, encode_identity(door.me)),
            *(((CALLEE_KEY, encode_identity(callee)),) if callee else ()),
            *door.proof(),
        )
        largest = LARGEST if role is Role.ROLLOUT else REST  # groups come from replicas alone
        self.channel = door.connect(address, role, [*OPTIONS, ("grpc.max_receive_message_length", largest)])
        self._closed = False

    async def unary(self, method: Any, request: Any, timeout_s: float) -> Any:
        """Call a method with one reply (the request may be a message or an iterator of messages)."""
        self._check_open()
        with self._under_way(method, request) as (moved, metadata):
            if not isinstance(request, Message):
                request = _each(request, moved)
            return await method(request, timeout=timeout_s, metadata=metadata)

    async def stream(self, method: Any, request: Any, timeout_s: float) -> AsyncIterator[Any]:
        """Call a method with a stream of replies; leaving the loop early cancels the call."""
        self._check_open()
        with self._under_way(method, request) as (moved, metadata):
            call = method(request, timeout=timeout_s, metadata=metadata)
            try:
                async for reply in call:
                    moved()
                    yield reply
            finally:
                call.cancel()

    async def alive(self, timeout_s: float) -> bool:
        """Whether a process serves there and answers at all, by the stock health service."""
        try:
            health: Any = health_pb2_grpc.HealthStub(self.channel)
            await health.Check(health_pb2.HealthCheckRequest(), timeout=timeout_s)
        except grpc.aio.AioRpcError as problem:
            return problem.code() is grpc.StatusCode.NOT_FOUND
        return True

    async def close(self) -> None:
        """Close the channel: calls that are under way, and those to come, end as Unavailable."""
        self._closed = True
        await self.channel.close()

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable(f"{self.name}: its channel was closed")

    @contextmanager
    def _under_way(self, method: Any, request: Any) -> Iterator[tuple[Callable[[], None], Metadata]]:
        """A call and its metadata, traced, and kept for whoever asks what hangs; how a service fares is what they ask,
        its answer no progress. Raises Tandem's exceptions for gRPC's."""
        what = in_words(request)
        waiting = nullcontext(_nothing) if what == STATUS else WAITS.on(self.name, what, self.role, self.address)
        try:
            with waiting as moved, asked(_path(method), self.address) as call:
                yield moved, (*self.metadata, *call.carrier().items())
        except grpc.aio.AioRpcError as problem:
            raise from_rpc_error(problem, self.name) from problem
        except asyncio.CancelledError:
            # gRPC cancels the calls of a channel that is closed; whoever awaits one is not cancelled for that
            if not ((task := asyncio.current_task()) and task.cancelling()):
                self._check_open()
            raise


def in_words(request: Any) -> str:
    """What a request, or the first of several, asks for: `TrainStep v12`."""
    message = next(iter(request), None) if isinstance(request, Sequence) else request
    if not isinstance(message, Message):
        return "a stream"
    name = message.DESCRIPTOR.name.removesuffix("Request")
    for part in (message, *(getattr(message, field, None) for field in ("header", "adapter"))):
        for field in ("policy_version", "expected_version", "version"):
            if isinstance(part, Message) and (version := getattr(part, field, None)):
                return f"{name} v{version}"
    return name


def _path(method: Any) -> str:
    """`package.Service/Method` of a stub's method, which does not tell it in public."""
    return method._method.decode().removeprefix("/")


def _each(parts: Iterable[Any], moved: Callable[[], None]) -> Iterator[Any]:
    for part in parts:
        moved()
        yield part


def _nothing() -> None:
    return
