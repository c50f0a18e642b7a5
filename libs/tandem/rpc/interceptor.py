"""The one server interceptor: refuses other protocol versions, maps exceptions to statuses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from tandem.obs import get_logger
from tandem.rpc.errors import to_status
from tandem.types import UserError

PROTOCOL_KEY = "tandem-protocol"
PROTOCOL = "1"
log = get_logger(__name__)


class Boundary(grpc.aio.ServerInterceptor):
    """Every Tandem method runs inside it; stock services (health, reflection) pass untouched."""

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
        spoken = dict(handler_call_details.invocation_metadata or ()).get(PROTOCOL_KEY, "none")
        return _wrapped(handler, method, spoken)


def _wrapped(handler: Any, method: str, spoken: Any) -> grpc.RpcMethodHandler:
    def check() -> None:
        if spoken != PROTOCOL:
            raise UserError(
                f"{method}: client speaks protocol {spoken}, server {PROTOCOL}; install the same Tandem release"
            )

    async def unary(request: Any, context: grpc.aio.ServicerContext) -> Any:
        try:
            check()
            return await behaviour(request, context)
        except BaseException as problem:  # noqa: BLE001 - the boundary: whatever leaves a servicer becomes a status
            await _abort(problem, method, context)

    async def streaming(request: Any, context: grpc.aio.ServicerContext) -> Any:
        try:
            check()
            async for reply in behaviour(request, context):
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
