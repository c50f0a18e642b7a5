"""The port that Prometheus scrapes: what the SDK holds, under the very names of the table, with exemplars.

OpenTelemetry's own exporter for Prometheus (0.66b2) leaves exemplars out, which lead from a slow turn to its trace, and
appends units to names. A scraper that accepts OpenMetrics gets the exemplars, any other one the text format without.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Any

from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader
from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar
from prometheus_client.utils import floatToGoString

from tandem.obs.instruments import ALL, Counter, Histogram, Instrument
from tandem.types import UserError

BY_NAME: Mapping[str, Instrument] = {instrument.name: instrument for instrument in ALL}


class ScrapedPort:
    """Serves http://ADDRESS/metrics at a free port, on threads of its own. It holds no secret, and asks for none."""

    def __init__(self, reader: InMemoryMetricReader, target: Mapping[str, str], host: str) -> None:
        """Raises UserError where the host is not this machine's."""
        registry = CollectorRegistry()
        registry.register(_Collector(reader, target))
        ProcessCollector(registry=registry)  # memory, processor seconds and open files, as Prometheus names them
        try:
            self._server, _ = start_http_server(0, host, registry)
        except OSError as problem:
            raise UserError(
                f"metrics cannot be served on {host}: {problem.strerror}; set obs.prometheus to false"
            ) from (problem)
        self.address = f"{host}:{self._server.server_port}"

    def close(self) -> None:
        """Give it back."""
        self._server.shutdown()
        self._server.server_close()


class _Collector(Collector):
    def __init__(self, reader: InMemoryMetricReader, target: Mapping[str, str]) -> None:
        self._reader, self._target = reader, dict(target)

    def collect(self) -> Iterator[Family]:
        yield InfoMetricFamily("target", "Who this is.", self._target)
        data = self._reader.get_metrics_data()
        for resource in data.resource_metrics if data else ():
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    if instrument := BY_NAME.get(metric.name):
                        yield family(instrument, metric.data.data_points)

    def describe(self) -> Iterable[Family]:
        """Nothing, so that registering scrapes nothing."""
        return ()


def family(instrument: Instrument, points: Iterable[Any]) -> Family:
    """One instrument's points (of the SDK) as Prometheus writes them."""
    name, words, labels = instrument.name, instrument.description, instrument.labels
    if isinstance(instrument, Histogram):
        made = HistogramMetricFamily(name, words, labels=labels)
        for point in points:
            made.add_metric(_values(instrument, point), _buckets(point), point.sum)
        return made
    kind = CounterMetricFamily if isinstance(instrument, Counter) else GaugeMetricFamily
    made = kind(name, words, labels=labels)
    for point in points:
        made.add_metric(_values(instrument, point), point.value)
    return made


def _values(instrument: Instrument, point: Any) -> list[str]:
    return [str(point.attributes[label]) for label in instrument.labels]


def _buckets(point: HistogramDataPoint) -> list[tuple[str, float] | tuple[str, float, Exemplar]]:
    """Upper bound, count up to there, and the latest exemplar in between."""
    found: dict[int, Exemplar] = {}
    for seen in point.exemplars:
        if seen.trace_id is not None and seen.span_id is not None:
            ids = {"trace_id": f"{seen.trace_id:032x}", "span_id": f"{seen.span_id:016x}"}
            found[bisect_left(point.explicit_bounds, seen.value)] = Exemplar(ids, seen.value, seen.time_unix_nano / 1e9)
    bounds = [*map(floatToGoString, point.explicit_bounds), "+Inf"]
    totals = zip(bounds, accumulate(point.bucket_counts), strict=True)
    return [(*each, found[at]) if at in found else each for at, each in enumerate(totals)]
