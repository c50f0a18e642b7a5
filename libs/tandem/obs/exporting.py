"""Spans on their way to a collector, in batches, from a thread of its own. Nothing waits for them.

Where the collector is away one line says so, spans beyond `QUEUE` are dropped, and the process ends no later than
`LAST_S` after it would have.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from tandem.obs import tracing
from tandem.obs.logging import get_logger

log = get_logger(__name__)
QUEUE, BATCH, EVERY_MS = 8192, 512, 1000
CALL_S = 3.0  # for one batch, with what is tried again
LAST_S = 3.0


class Exporter(SpanExporter):
    """OTLP's, whose failures are told once, and which ends in time."""

    def __init__(self, endpoint: str) -> None:
        self._otlp, self._endpoint = OTLPSpanExporter(endpoint, timeout=CALL_S), endpoint
        self._away, self._until = False, float("inf")

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send a batch."""
        ending = self._until < float("inf")
        if ending and (self._away or time.monotonic() > self._until):
            return SpanExportResult.FAILURE
        result = self._otlp.export(spans)
        away = result is not SpanExportResult.SUCCESS
        if away and not self._away:
            log.warning("no traces: the collector at %s (obs.otlp) does not take them; the run goes on", self._endpoint)
        elif self._away and not away:
            log.info("the collector at %s takes traces again", self._endpoint)
        self._away = away
        return result

    def last(self, within_s: float) -> None:
        """Begin nothing later than that."""
        self._until = time.monotonic() + within_s

    def shutdown(self) -> None:
        """Close the channel."""
        self._otlp.shutdown()


def begin(endpoint: str, share: float, resource: dict[str, str]) -> Callable[[], None]:
    """Trace, to the collector at `endpoint`. What is returned sends what is left, and is the end of it."""
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # what is to be said of it we say, once
    exporter = Exporter(endpoint)
    provider = TracerProvider(resource=Resource.create(resource), shutdown_on_exit=False)
    provider.add_span_processor(
        BatchSpanProcessor(exporter, max_queue_size=QUEUE, schedule_delay_millis=EVERY_MS, max_export_batch_size=BATCH)
    )
    tracing.record(provider.get_tracer("tandem"), share)

    def finish() -> None:
        tracing.record(None)
        exporter.last(LAST_S)
        provider.shutdown()

    return finish
