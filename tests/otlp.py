"""A real OTLP/gRPC receiver: what a collector is, as far as spans go."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as pb
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span as Message
from opentelemetry.proto.trace.v1.trace_pb2 import Status


@dataclass(frozen=True)
class Span:
    """One that came. Times in seconds; `parent` is empty for a root; `links` are trace ids."""

    name: str
    trace: str
    id: str
    parent: str
    kind: str
    status: str
    why: str
    start: float
    end: float
    attributes: Mapping[str, Any]
    links: tuple[str, ...]
    resource: Mapping[str, Any]

    @property
    def service(self) -> str:
        return self.resource["service.name"]


@dataclass
class Receiver(trace_service_pb2_grpc.TraceServiceServicer):
    """Keeps what comes. `port` is where it listens."""

    spans: list[Span] = field(default_factory=list)
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def Export(self, request: pb.ExportTraceServiceRequest, context: Any) -> pb.ExportTraceServiceResponse:
        for part in request.resource_spans:
            resource = _values(part.resource.attributes)
            for scope in part.scope_spans:
                self.spans += [_span(message, resource) for message in scope.spans]
        return pb.ExportTraceServiceResponse()

    def of(self, trace: str) -> list[Span]:
        """Those of one trace."""
        return [span for span in self.spans if span.trace == trace]

    def roots(self, name: str) -> list[Span]:
        """Those that begin a trace, by name, oldest first."""
        found = [span for span in self.spans if not span.parent and span.name == name]
        return sorted(found, key=lambda span: span.start)


@contextmanager
def receiver() -> Iterator[Receiver]:
    """Listening on loopback."""
    server, found = grpc.server(ThreadPoolExecutor(2)), Receiver()
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(found, server)
    found.port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield found
    finally:
        server.stop(0).wait()


def _span(message: Message, resource: Mapping[str, Any]) -> Span:
    return Span(
        name=message.name,
        trace=message.trace_id.hex(),
        id=message.span_id.hex(),
        parent=message.parent_span_id.hex(),
        kind=Message.SpanKind.Name(message.kind).removeprefix("SPAN_KIND_"),
        status=Status.StatusCode.Name(message.status.code).removeprefix("STATUS_CODE_"),
        why=message.status.message,
        start=message.start_time_unix_nano / 1e9,
        end=message.end_time_unix_nano / 1e9,
        attributes=_values(message.attributes),
        links=tuple(link.trace_id.hex() for link in message.links),
        resource=resource,
    )


def _values(attributes: Sequence[Any]) -> dict[str, Any]:
    return {item.key: _value(item.value) for item in attributes}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(item) for item in value.array_value.values]
    return getattr(value, kind) if kind else None


def main() -> None:
    """Serve until stdin closes; the URL on stdout. For who measures: a collector is another process."""
    with receiver() as got:
        print(got.url, flush=True)
        sys.stdin.read()
        print(len(got.spans), flush=True)


if __name__ == "__main__":
    main()
