"""One client call: protocol version, caller and callee in the metadata, a deadline, and Tandem's own exceptions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from typing import Any
from uuid import uuid4

import grpc

from tandem.rpc.door import OPEN, Door
from tandem.rpc.errors import from_rpc_error
from tandem.rpc.fence import CALLEE_KEY, CALLER_KEY, encode_identity
from tandem.rpc.interceptor import PROTOCOL, PROTOCOL_KEY
from tandem.rpc.server import MAX_MESSAGE_BYTES
from tandem.types import Identity, Role, Unavailable

OPTIONS = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2000),
]


def new_request_id() -> str:
    """Unique; make it once per intention and repeat it with every retry."""
    return uuid4().hex


class Peer:
    """A channel to the service of a role at `address` (host:port). With a `callee` its server refuses the calls unless
    it is that very process."""

    def __init__(self, role: Role, address: str, door: Door = OPEN, callee: Identity | None = None) -> None:
        self.name = f"{callee or role.replace('_', ' ')} at {address}"
        self.address = address
        self.metadata: tuple[tuple[str, str], ...] = (
            (PROTOCOL_KEY, PROTOCOL),
            (CALLER_KEY, encode_identity(door.me)),
            *(((CALLEE_KEY, encode_identity(callee)),) if callee else ()),
        )
        self.channel = door.connect(address, OPTIONS)
        self._closed = False

    async def unary(self, method: Any, request: Any, timeout_s: float) -> Any:
        """Call a method with one reply (the request may be a message or an iterator of messages)."""
        return await self._mapped(method(request, timeout=timeout_s, metadata=self.metadata))

    async def stream(self, method: Any, request: Any, timeout_s: float) -> AsyncIterator[Any]:
        """Call a method with a stream of replies; leaving the loop early cancels the call."""
        call = method(request, timeout=timeout_s, metadata=self.metadata)
        try:
            async for reply in call:
                yield reply
        except grpc.aio.AioRpcError as problem:
            raise from_rpc_error(problem, self.name) from problem
        except asyncio.CancelledError:
            self._check_closed()
            raise
        finally:
            call.cancel()

    async def close(self) -> None:
        """Close the channel: calls that are under way end as Unavailable."""
        self._closed = True
        await self.channel.close()

    def _check_closed(self) -> None:
        """gRPC cancels the calls of a channel that is closed; whoever awaits one is not cancelled for that."""
        task = asyncio.current_task()
        if self._closed and not (task and task.cancelling()):
            raise Unavailable(f"{self.name}: its channel was closed")

    async def _mapped(self, call: Awaitable[Any]) -> Any:
        try:
            return await call
        except grpc.aio.AioRpcError as problem:
            raise from_rpc_error(problem, self.name) from problem
        except asyncio.CancelledError:
            self._check_closed()
            raise
