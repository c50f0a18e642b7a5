"""A call as a span at either end, by OpenTelemetry's conventions for RPC, with the status that it really had; and its
seconds among the metrics.

Which codes are errors: all but OK where it was called; where it was answered, not those that blame the caller. A call
that is cut off because its deadline has passed is DEADLINE_EXCEEDED at both ends.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import grpc

from tandem.obs.instruments import RPC_TIME
from tandem.obs.metrics import observe
from tandem.obs.tracing import Kind, Span, span, traced, under

Metadata = Mapping[str, str | bytes]
Code = grpc.StatusCode
STATUS = "GetStatus"  # asked again and again, by whoever watches: a part of a trace, or none
AT_ITS_DEADLINE_S = 0.1  # a caller's word that it has given up travels as fast as the deadline comes
CARRIED = ("traceparent", "baggage")
CODES = {code.value[0]: code for code in Code}
SERVERS_FAULT = {
    Code.UNKNOWN,
    Code.DEADLINE_EXCEEDED,
    Code.UNIMPLEMENTED,
    Code.INTERNAL,
    Code.UNAVAILABLE,
    Code.DATA_LOSS,
}


@contextmanager
def asked(method: str, address: str) -> Iterator[Span]:
    """The call of a method (`package.Service/Method`) at host:port, for as long as the body runs. Not made current: it
    may be a stream, whose body other tasks go through."""
    host, _, port = address.rpartition(":")
    where = {"server.address": host, "server.port": int(port) if port.isdigit() else 0}
    wanted = traced() or not method.endswith(STATUS)
    call = span(method, {**_named(method), **where}, kind=Kind.CLIENT, on=wanted)
    problem: BaseException | None = None
    code, began = Code.OK, time.perf_counter()
    try:
        yield call
        _ended(call, code)
    except grpc.aio.AioRpcError as failure:
        code = failure.code()
        _ended(call, code, failure.details() or "", error=True)
        raise
    except (asyncio.CancelledError, GeneratorExit):
        code = Code.CANCELLED
        _ended(call, code, "cancelled by the caller", error=True)
        raise
    except BaseException as failure:
        code, problem = Code.UNKNOWN, failure
        raise
    finally:
        call.end(problem)
        _timed("client", method, code, began)


@contextmanager
def answered(method: str, metadata: Metadata, context: grpc.aio.ServicerContext) -> Iterator[None]:
    """The call of a method as its server sees it: what the body does is a part of what the caller does."""
    said = {key: value for key in CARRIED if isinstance(value := metadata.get(key), str)}
    name = method.removeprefix("/")
    code, began = Code.OK, time.perf_counter()
    with under(said):
        wanted = traced() or not name.endswith(STATUS)
        with span(name, _named(name), kind=Kind.SERVER, on=wanted) as call:
            try:
                yield
                _ended(call, code)
            except BaseException as failure:
                code, details = _code_of(failure, context)
                _ended(call, code, details, error=code in SERVERS_FAULT)
                raise
            finally:
                _timed("server", name, code, began)


def in_short(method: str) -> str:
    """`Service/Method` without its package: how metrics label it."""
    service, _, name = method.removeprefix("/").partition("/")
    return f"{service.rpartition('.')[2]}/{name}"


def _timed(side: str, method: str, code: Code, began: float) -> None:
    observe(RPC_TIME, time.perf_counter() - began, side=side, method=in_short(method), code=code.name)


def _named(method: str) -> dict[str, str]:
    return {"rpc.system.name": "grpc", "rpc.method": method}


def _ended(call: Span, code: Code, details: str = "", *, error: bool = False) -> None:
    call.set({"rpc.response.status_code": code.name})
    if error:
        call.failed(details, code.name)
    elif code is not Code.OK:
        call.unset()


def _code_of(failure: BaseException, context: grpc.aio.ServicerContext) -> tuple[Code, str]:
    """What the caller is told of what leaves a method."""
    if isinstance(failure, grpc.aio.AbortError):
        code = context.code()
        return CODES.get(code, Code.UNKNOWN) if isinstance(code, int) else code, str(context.details())
    if isinstance(failure, asyncio.CancelledError | GeneratorExit):
        left = context.time_remaining()
        late = left is not None and left < AT_ITS_DEADLINE_S
        return (Code.DEADLINE_EXCEEDED, "the caller's deadline") if late else (Code.CANCELLED, "cancelled")
    return Code.UNKNOWN, f"{type(failure).__name__}: {failure}"
