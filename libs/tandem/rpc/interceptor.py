"""The one server interceptor: refuses other protocol versions and the replaced, maps exceptions to statuses."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import grpc

from tandem.obs import get_logger
from tandem.rpc.errors import to_status
from tandem.rpc.fence import CALLEE_KEY, CALLER_KEY, Fence, decode_identity
from tandem.types import Identity, UserError

PROTOCOL_KEY = "tandem-protocol"
PROTOCOL = "1"
log = get_logger(__name__)


class Boundary(grpc.aio.ServerInterceptor):
    """Every Tandem method runs inside it; stock services (health, reflection) pass untouched. `me` is who serves."""

    def __init__(self, me: Identity) -> None:
        self._fence = Fence(me)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler:
        """Wrap the method's behaviour."""
        handler = await continuation(handler_call_details)
        method = str(handler_call_details.method)
        if handler is None or not method.startswith("/tandem."):
            return handler
        return _wrapped(handler, method, dict(handler_call_details.invocation_metadata or ()), self._fence)


def _met(method: str, metadata: Mapping[str, str | bytes], fence: Fence) -> Identity:
    """Let a call begin; who calls."""
    spoken = metadata.get(PROTOCOL_KEY, "none")
    if spoken != PROTOCOL:
        raise UserError(
            f"{method}: client speaks protocol {spoken}, server {PROTOCOL}; install the same Tandem release"
        )
    caller = decode_identity(metadata, CALLER_KEY)
    if caller is None:
        raise UserError(f"{method}: the call does not say who calls ({CALLER_KEY}); install the same Tandem release")
    fence.meet(caller, decode_identity(metadata, CALLEE_KEY))
    return caller


async def _fenced(parts: AsyncIterator[Any], caller: Identity, fence: Fence) -> AsyncIterator[Any]:
    async for part in parts:
        fence.check(caller)
        yield part


def _wrapped(handler: Any, method: str, metadata: Mapping[str, str | bytes], fence: Fence) -> grpc.RpcMethodHandler:
    def begin(request: Any) -> Any:
        caller = _met(method, metadata, fence)
        return _fenced(request, caller, fence) if handler.request_streaming else request

    async def unary(request: Any, context: grpc.aio.ServicerContext) -> Any:
        try:
            return await behaviour(begin(request), context)
        except BaseException as problem:  # noqa: BLE001 - the boundary: whatever leaves a servicer becomes a status
            await _abort(problem, method, context)

    async def streaming(request: Any, context: grpc.aio.ServicerContext) -> Any:
        try:
            async for reply in behaviour(begin(request), context):
                yield reply
        except BaseException as problem:  # noqa: BLE001 - the boundary, as above
            await _abort(problem, method, context)

    kinds = {
        (False, False): ("unary_unary", grpc.unary_unary_rpc_method_handler, unary),
        (True, False): ("stream_unary", grpc.stream_unary_rpc_method_handler, unary),
        (False, True): ("unary_stream", grpc.unary_stream_rpc_method_handler, streaming),
        (True, True): ("stream_stream", grpc.stream_stream_rpc_method_handler, streaming),
    }
    name, make, around = kinds[handler.request_streaming, handler.response_streaming]
    behaviour = getattr(handler, name)
    return make(
        around, request_deserializer=handler.request_deserializer, response_serializer=handler.response_serializer
    )


async def _abort(problem: BaseException, method: str, context: grpc.aio.ServicerContext) -> None:
    if isinstance(problem, grpc.aio.AbortError | GeneratorExit):
        raise problem
    status, message = to_status(problem)
    if status is grpc.StatusCode.INTERNAL:
        log.error("%s failed: %s", method, message, exc_info=problem)
    if status is grpc.StatusCode.CANCELLED:
        raise problem
    await context.abort(status, message)
