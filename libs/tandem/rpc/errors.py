"""The table between Tandem's exceptions and gRPC statuses."""

from __future__ import annotations

import asyncio

import grpc

from tandem.types import DataCorrupt, Forbidden, NotFound, StaleRequest, TandemError, Unavailable, UserError


class Unproven(Forbidden):
    """The caller did not prove any role."""


STATUS: dict[type[TandemError], grpc.StatusCode] = {
    UserError: grpc.StatusCode.INVALID_ARGUMENT,
    StaleRequest: grpc.StatusCode.FAILED_PRECONDITION,
    NotFound: grpc.StatusCode.NOT_FOUND,
    DataCorrupt: grpc.StatusCode.DATA_LOSS,
    Unproven: grpc.StatusCode.UNAUTHENTICATED,
    Forbidden: grpc.StatusCode.PERMISSION_DENIED,
    Unavailable: grpc.StatusCode.UNAVAILABLE,
}
EXCEPTION: dict[grpc.StatusCode, type[TandemError]] = {
    **{status: kind for kind, status in STATUS.items()},
    grpc.StatusCode.UNAUTHENTICATED: Forbidden,
    grpc.StatusCode.UNIMPLEMENTED: UserError,
    grpc.StatusCode.DEADLINE_EXCEEDED: Unavailable,
    grpc.StatusCode.CANCELLED: Unavailable,
}
BUSY = "Concurrent RPC limit"  # gRPC's words for a RESOURCE_EXHAUSTED that passes; of others a message is too large
HANDSHAKE = (
    "handshake",
    "SSL_ERROR",
    "CERTIFICATE",
    "certificate",
    "ALERT",
    "Verification",
)  # in gRPC's words for a failed one
MOST_WORDS = 4000  # characters of a message: it travels in the metadata, which is bounded, in up to 3 bytes each


def to_status(problem: BaseException) -> tuple[grpc.StatusCode, str]:
    """Status and message for an exception that leaves a servicer."""
    if isinstance(problem, asyncio.CancelledError):
        return grpc.StatusCode.CANCELLED, "the call was cancelled"
    for kind, status in STATUS.items():
        if isinstance(problem, kind):
            return status, _short(str(problem))
    return grpc.StatusCode.INTERNAL, _short(f"{type(problem).__name__}: {problem}")


def from_rpc_error(problem: grpc.aio.AioRpcError, peer: str) -> TandemError:
    """The exception that the server raised, seen from the client; `peer` says who was asked."""
    code, details = problem.code(), problem.details() or problem.code().name
    kind = EXCEPTION.get(code, TandemError)
    if kind is Forbidden:
        return Forbidden(f"{peer}: {details}")
    if code is grpc.StatusCode.UNAVAILABLE and any(word in details for word in HANDSHAKE):
        return Forbidden(f"{peer}: no TLS connection ({details}); both sides need mode mtls and certificates of one CA")
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        kind = Unavailable if BUSY in details else UserError
    told_by_server = (
        kind in (UserError, StaleRequest, NotFound, DataCorrupt) and code is not grpc.StatusCode.UNIMPLEMENTED
    )
    return kind(details if told_by_server else f"{peer}: {code.name}: {details}")


def _short(text: str) -> str:
    most = MOST_WORDS if text.isascii() else MOST_WORDS // 4
    return text if len(text) <= most else f"{text[:most]} ... ({len(text)} characters)"
