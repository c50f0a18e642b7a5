"""Real servers, channels and a real OTLP receiver: a call's spans at both ends, and the status that each really had."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import grpc
import pytest
from google.protobuf.wrappers_pb2 import StringValue
from tests.otlp import Receiver, Span, receiver

from tandem.obs.exporting import begin
from tandem.obs.tracing import span, trace
from tandem.rpc.channel import Peer
from tandem.rpc.server import serve
from tandem.types import Role, TandemError, UserError

SERVICE = "tandem.test.v1.Kinds"
KINDS = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")
# what becomes of a call: (client's status and code, server's status and code)
OUTCOMES = {
    "well": (("OK", "OK"), ("OK", "OK")),
    "raise": (("ERROR", "INTERNAL"), ("ERROR", "INTERNAL")),  # what nobody foresaw
    "refuse": (("ERROR", "INVALID_ARGUMENT"), ("UNSET", "INVALID_ARGUMENT")),  # the caller's fault
    "abort": (("ERROR", "UNAVAILABLE"), ("ERROR", "UNAVAILABLE")),
    "late": (("ERROR", "DEADLINE_EXCEEDED"), ("ERROR", "DEADLINE_EXCEEDED")),
    "cancel": (("ERROR", "CANCELLED"), ("UNSET", "CANCELLED")),
}


async def _answer(asked: str, context: grpc.aio.ServicerContext) -> StringValue:
    with span("work"):
        if asked == "raise":
            raise ZeroDivisionError("nobody foresaw this")
        if asked == "refuse":
            raise UserError("not this")
        if asked == "abort":
            await context.abort(grpc.StatusCode.UNAVAILABLE, "not now")
        if asked in ("late", "cancel"):
            await asyncio.Event().wait()
    return StringValue(value=asked)


async def _first(requests: AsyncIterator[StringValue]) -> str:
    [request] = [request async for request in requests]
    return request.value


class Kinds:
    """A method of each kind."""

    async def unary_unary(self, request, context):
        return await _answer(request.value, context)

    async def unary_stream(self, request, context):
        yield StringValue(value="first")
        yield await _answer(request.value, context)

    async def stream_unary(self, requests, context):
        return await _answer(await _first(requests), context)

    async def stream_stream(self, requests, context):
        yield StringValue(value="first")
        yield await _answer(await _first(requests), context)

    def register(self, server: grpc.aio.Server) -> None:
        handlers = {
            kind: getattr(grpc, f"{kind}_rpc_method_handler")(
                getattr(self, kind), StringValue.FromString, StringValue.SerializeToString
            )
            for kind in KINDS
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))


async def call(peer: Peer, kind: str, outcome: str) -> str:
    """Make it in a trace of its own, whose id is returned."""
    make = getattr(peer.channel, kind)
    method = make(f"/{SERVICE}/{kind}", StringValue.SerializeToString, StringValue.FromString)
    message = StringValue(value=outcome)
    request = message if kind.startswith("unary") else [message]
    timeout_s = 0.5 if outcome == "late" else 30

    async def asked() -> None:
        if kind.endswith("unary"):
            await peer.unary(method, request, timeout_s)
        else:
            assert [reply.value async for reply in peer.stream(method, request, timeout_s)] == ["first", outcome]

    with trace(f"{kind} {outcome}") as root:
        asking = asyncio.ensure_future(asked())
        if outcome == "cancel":
            await asyncio.wait({asking}, timeout=0.3)
            asking.cancel()
        [problem] = await asyncio.gather(asking, return_exceptions=True)
        expected = {"well": type(None), "cancel": asyncio.CancelledError, "refuse": UserError}
        assert isinstance(problem, expected.get(outcome, TandemError)), problem
        return root.carrier()["traceparent"].split("-")[1]


@dataclass(frozen=True)
class Made:
    """All calls, by kind and outcome: the trace of each."""

    traces: dict[tuple[str, str], str]
    got: Receiver

    def ends(self, kind: str, outcome: str) -> tuple[Span, Span]:
        """The call's two spans."""
        found = self.got.of(self.traces[kind, outcome])
        [client] = [one for one in found if one.kind == "CLIENT"]
        [server] = [one for one in found if one.kind == "SERVER"]
        [root] = [one for one in found if not one.parent]
        [work] = [one for one in found if one.name == "work"]
        assert (client.parent, server.parent, work.parent) == (root.id, client.id, server.id)
        return client, server


@pytest.fixture(scope="module")
def made() -> Iterator[Made]:
    async def make() -> dict[tuple[str, str], str]:
        running = await serve(Kinds().register, [SERVICE])
        peer = Peer(Role.ROLLOUT, running.address)
        names = [(kind, outcome) for kind in KINDS for outcome in OUTCOMES]
        try:
            traces = await asyncio.gather(*(call(peer, *name) for name in names))
        finally:
            await peer.close()
            await running.stop(5)
        return dict(zip(names, traces, strict=True))

    with receiver() as got:
        finish = begin(got.url, 1.0, {"service.name": "test"})
        try:
            traces = asyncio.run(make())
        finally:
            finish()
        yield Made(traces, got)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("outcome", OUTCOMES)
def test_both_ends_of_a_call_have_the_status_it_had(made: Made, kind: str, outcome: str) -> None:
    client, server = made.ends(kind, outcome)
    ends = tuple((end.status, end.attributes["rpc.response.status_code"]) for end in (client, server))
    assert ends == OUTCOMES[outcome]
    for end in (client, server):
        assert end.name == f"{SERVICE}/{kind}"
        assert (end.attributes["rpc.system.name"], end.attributes["rpc.method"]) == ("grpc", end.name)
        assert end.attributes.get("error.type") == (
            end.attributes["rpc.response.status_code"] if end.status == "ERROR" else None
        )
    assert client.attributes["server.address"] == "127.0.0.1" and client.attributes["server.port"] > 0


def test_why_a_call_failed_is_told(made: Made) -> None:
    _, server = made.ends("unary_unary", "raise")
    assert server.why == "ZeroDivisionError: nobody foresaw this"
    client, _ = made.ends("stream_stream", "abort")
    assert client.why == "not now"
