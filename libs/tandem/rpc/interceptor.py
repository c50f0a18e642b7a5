"""The one server interceptor: lets in who may call, reads what was sent, maps exceptions to statuses, makes the span.

A call's metadata is judged before its first message is read: who is refused sends nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from tandem.obs import get_logger
from tandem.obs.instruments import RPC_BYTES
from tandem.obs.metrics import count
from tandem.rpc.access import FOR_ANYONE, rule_of
from tandem.rpc.door import Door
from tandem.rpc.errors import to_status
from tandem.rpc.fence import CALLEE_KEY, CALLER_KEY, Fence, decode_identity
from tandem.rpc.spans import answered, in_short
from tandem.types import Forbidden, Identity, Role, UserError

PROTOCOL_KEY = "tandem-protocol"
PROTOCOL = "1"
Metadata = Mapping[str, str | bytes]
log = get_logger(__name__)


class Boundary(grpc.aio.ServerInterceptor):
    """Every method runs inside it but the health check, which is for anyone."""

    def __init__(self, door: Door) -> None:
        self._door = door
        self._fence = Fence(door.me)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler:
        """Wrap the method's behaviour."""
        handler = await continuation(handler_call_details)
        method = str(handler_call_details.method)
        if handler is None or method == FOR_ANYONE:
            return handler
        return Call(
            handler, method, dict(handler_call_details.invocation_metadata or ()), self._door, self._fence
        ).run()


class Call:
    """One call. Whatever the method's shape, gRPC hands us a stream of bytes: nothing is parsed before we say so."""

    def __init__(self, handler: Any, method: str, metadata: Metadata, door: Door, fence: Fence) -> None:
        self._handler, self._method, self._metadata = handler, method, metadata
        self._door, self._fence = door, fence
        self._rule = rule_of(method)

    def run(self) -> grpc.RpcMethodHandler:
        """The handler that gRPC is to call."""
        serializer, behaviour = self._serialized, self._behaviour()

        async def unary(parts: AsyncIterator[bytes], context: grpc.aio.ServicerContext) -> Any:
            with answered(self._method, self._metadata, context):
                try:
                    return await behaviour(await self._begun(parts, context), context)
                except BaseException as problem:  # noqa: BLE001 - the boundary: what leaves a servicer becomes a status
                    await _abort(problem, self._method, context)

        async def streaming(parts: AsyncIterator[bytes], context: grpc.aio.ServicerContext) -> Any:
            with answered(self._method, self._metadata, context):
                try:
                    async for reply in behaviour(await self._begun(parts, context), context):
                        yield reply
                except BaseException as problem:  # noqa: BLE001 - the boundary, as above
                    await _abort(problem, self._method, context)

        if self._handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler(streaming, response_serializer=serializer)
        return grpc.stream_unary_rpc_method_handler(unary, response_serializer=serializer)

    def _serialized(self, reply: Any) -> bytes:
        data: bytes = self._handler.response_serializer(reply)
        count(RPC_BYTES, len(data), method=in_short(self._method), direction="sent")
        return data

    def _behaviour(self) -> Any:
        sides = (self._handler.request_streaming, self._handler.response_streaming)
        return getattr(self._handler, "_".join("stream" if side else "unary" for side in sides))

    async def _begun(self, parts: AsyncIterator[bytes], context: grpc.aio.ServicerContext) -> Any:
        """What the method is given, once its caller is let in: the request, or the requests as they come."""
        caller = self._let_in(self._door.proven(self._metadata, context.auth_context() or {}))
        requests = self._parsed(parts, caller)
        if self._handler.request_streaming:
            return requests
        async for request in requests:
            return request
        raise UserError(f"{self._method}: no message came")

    def _let_in(self, proven: Role | None) -> Identity | None:
        """Who calls; None of those whom nobody succeeds. Raises Forbidden, UserError, StaleRequest."""
        if proven and (self._rule is None or proven not in self._rule.callers):
            raise Forbidden(f"{self._method}: the {_words(proven)} may not call this")
        if not self._method.startswith("/tandem."):
            return None
        spoken = self._metadata.get(PROTOCOL_KEY, "none")
        if spoken != PROTOCOL:
            raise UserError(
                f"{self._method}: client speaks protocol {spoken}, server {PROTOCOL}; install the same Tandem release"
            )
        caller = decode_identity(self._metadata, CALLER_KEY)
        if caller is None:
            raise UserError(f"{self._method}: the call has no {CALLER_KEY}; install the same Tandem release")
        if proven and caller.role is not proven:
            raise Forbidden(f"{self._method}: the {_words(proven)} says that it is {caller}")
        self._fence.meet(caller, decode_identity(self._metadata, CALLEE_KEY))
        return caller

    async def _parsed(self, parts: AsyncIterator[bytes], caller: Identity | None) -> AsyncIterator[Any]:
        async for data in parts:
            count(RPC_BYTES, len(data), method=in_short(self._method), direction="received")
            if caller:
                self._fence.check(caller)
            if self._rule and len(data) > self._rule.request_bytes:
                raise UserError(
                    f"{self._method}: a message of {len(data)} bytes came; {self._rule.request_bytes} are the most"
                )
            try:
                yield self._handler.request_deserializer(data)
            except DecodeError as problem:
                raise UserError(f"{self._method}: what came is no message of this method") from problem


def _words(role: Role) -> str:
    return role.replace("_", " ")


async def _abort(problem: BaseException, method: str, context: grpc.aio.ServicerContext) -> None:
    if isinstance(problem, grpc.aio.AbortError | GeneratorExit):
        raise problem
    status, message = to_status(problem)
    if status is grpc.StatusCode.INTERNAL:
        log.error("%s failed: %s", method, message, exc_info=problem)
    if status is grpc.StatusCode.CANCELLED:
        raise problem
    await context.abort(status, message)
