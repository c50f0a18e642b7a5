"""The table between Tandem's exceptions and gRPC statuses."""

from __future__ import annotations

import asyncio

import grpc

from tandem.types import DataCorrupt, NotFound, StaleRequest, TandemError, Unavailable, UserError

STATUS: dict[type[TandemError], grpc.StatusCode] = {
    UserError: grpc.StatusCode.INVALID_ARGUMENT,
    StaleRequest: grpc.StatusCode.FAILED_PRECONDITION,
    NotFound: grpc.StatusCode.NOT_FOUND,
    DataCorrupt: grpc.StatusCode.DATA_LOSS,
    Unavailable: grpc.StatusCode.UNAVAILABLE,
}
EXCEPTION: dict[grpc.StatusCode, type[TandemError]] = {
    **{status: kind for kind, status in STATUS.items()},
    grpc.StatusCode.UNIMPLEMENTED: UserError,
    grpc.StatusCode.DEADLINE_EXCEEDED: Unavailable,
    grpc.StatusCode.CANCELLED: Unavailable,
}


def to_status(problem: BaseException) -> tuple[grpc.StatusCode, str]:
    """Status and message for an exception that leaves a servicer."""
    if isinstance(problem, asyncio.CancelledError):
        return grpc.StatusCode.CANCELLED, "the call was cancelled"
    for kind, status in STATUS.items():
        if isinstance(problem, kind):
            return status, str(problem)
    return grpc.StatusCode.INTERNAL, f"{type(problem).__name__}: {problem}"


def from_rpc_error(problem: grpc.aio.AioRpcError, peer: str) -> TandemError:
    """The exception that the server raised, seen from the client; `peer` says who was asked."""
    kind = EXCEPTION.get(problem.code(), TandemError)
    details = problem.details() or problem.code().name
    told_by_server = (
        kind in (UserError, StaleRequest, NotFound, DataCorrupt) and problem.code() is not grpc.StatusCode.UNIMPLEMENTED
    )
    return kind(details if told_by_server else f"{peer}: {problem.code().name}: {details}")
