"""The figures of this process, in OpenTelemetry's SDK, and the ways out of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from threading import Lock
from typing import Any

from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource

from tandem.obs.instruments import Counter, Gauge, Histogram, Instrument
from tandem.obs.scrape import ScrapedPort

Ask = Callable[[], float | None]
Labels = Mapping[str, str]
Key = tuple[str, ...]
PUSH_MS = 15_000
CALL_S = 3.0  # for one push, with what is tried again
LAST_MS = 3_000  # for the last one


class Meters:
    """See `tandem.obs.metrics`. Threads may use it at once. An instrument is made when it is first used."""

    def __init__(self, target: Labels, resource: Labels, host: str = "", otlp: str = "") -> None:
        """Have them scraped at `host`, pushed to the collector at the URL `otlp`, or both. What is pushed says of its
        resource what `target` says of what is scraped.

        Raises:
            UserError: nothing can listen at the host.
        """
        readers: list[MetricReader] = []
        self._port: ScrapedPort | None = None
        if host:
            scraped = InMemoryMetricReader()
            self._port = ScrapedPort(scraped, target, host)
            readers.append(scraped)
        if otlp:
            exporter = OTLPMetricExporter(otlp, timeout=CALL_S)
            readers.append(PeriodicExportingMetricReader(exporter, PUSH_MS, CALL_S * 1000))
        self.address = self._port.address if self._port else ""
        self._provider = MeterProvider(readers, Resource.create({**resource, **target}), shutdown_on_exit=False)
        self._meter = self._provider.get_meter("tandem")
        self._made: dict[Instrument, Any] = {}
        self._held: dict[Instrument, dict[Key, Ask]] = {}
        self._lock = Lock()

    def add(self, counter: Counter, amount: float, labels: Labels) -> None:
        """See `count`."""
        assert tuple(labels) == counter.labels, counter
        (self._made.get(counter) or self._make(counter)).add(amount, labels)

    def record(self, histogram: Histogram, value: float, labels: Labels) -> None:
        """See `observe`."""
        assert tuple(labels) == histogram.labels, histogram
        (self._made.get(histogram) or self._make(histogram)).record(value, labels)

    def hold(self, instrument: Gauge | Counter, ask: Ask, labels: Labels) -> Callable[[], None]:
        """See `watch`."""
        assert tuple(labels) == instrument.labels, instrument
        key = tuple(labels.values())
        with self._lock:
            held = self._held.setdefault(instrument, {})
            held[key] = ask
            if instrument not in self._made:
                make = (
                    self._meter.create_observable_gauge
                    if isinstance(instrument, Gauge)
                    else self._meter.create_observable_counter
                )
                read = partial(self._read, instrument)
                self._made[instrument] = make(instrument.name, [read], instrument.unit, instrument.description)

        def end() -> None:
            with self._lock:
                if held.get(key) is ask:
                    del held[key]

        return end

    def close(self) -> None:
        """Give the port back; push what is to be pushed."""
        if self._port:
            self._port.close()
        self._provider.shutdown(LAST_MS)

    def _make(self, instrument: Counter | Histogram) -> Any:
        name, unit, words = instrument.name, instrument.unit, instrument.description
        with self._lock:
            if instrument not in self._made:
                self._made[instrument] = (
                    self._meter.create_histogram(
                        name, unit, words, explicit_bucket_boundaries_advisory=instrument.buckets
                    )
                    if isinstance(instrument, Histogram)
                    else self._meter.create_counter(name, unit, words)
                )
        return self._made[instrument]

    def _read(self, instrument: Instrument, _options: CallbackOptions) -> Iterable[Observation]:
        with self._lock:
            held = list(self._held[instrument].items())
        for key, ask in held:
            if (value := ask()) is not None:
                yield Observation(value, dict(zip(instrument.labels, key, strict=True)))
