"""Metrics pushed by OTLP, to a real receiver."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2_grpc import (
    MetricsServiceServicer,
    add_MetricsServiceServicer_to_server,
)

from tandem.config import Config
from tandem.obs import instruments as of
from tandem.obs.metrics import close_metrics, count, gauge, observe, setup_metrics
from tandem.types import Identity, Role


class Receiver(MetricsServiceServicer):
    """Keeps what comes. It listens at `address`."""

    def __init__(self) -> None:
        self.got: list[ExportMetricsServiceRequest] = []
        self.server = grpc.server(ThreadPoolExecutor(2))
        add_MetricsServiceServicer_to_server(self, self.server)
        self.address = f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"
        self.server.start()

    def Export(self, request: ExportMetricsServiceRequest, context: object) -> ExportMetricsServiceResponse:
        """Of one push."""
        self.got.append(request)
        return ExportMetricsServiceResponse()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.server.stop(None)


def config(otlp: str) -> Config:
    return Config.model_validate({"run": {"name": "r"}, "model": {"path": "m"}, "obs": {"otlp": otlp}})


def test_the_end_pushes_what_was_recorded_with_the_labels_that_a_scrape_has(receiver: Receiver) -> None:
    assert setup_metrics(config(f"http://{receiver.address}"), Identity(Role.LEARNER, 1), node="n1") == ""
    count(of.TURNS, 3, parsed="true")
    observe(of.TURN_TIME, 0.2)
    gauge(of.LOSS, -0.5)
    close_metrics()
    [resource] = receiver.got[-1].resource_metrics
    said = {pair.key: pair.value.string_value for pair in resource.resource.attributes}
    assert {name: said[name] for name in ("run", "role", "index", "node", "service.name")} == {
        "run": "r",
        "role": "learner",
        "index": "1",
        "node": "n1",
        "service.name": "tandem-learner",
    }
    [scope] = resource.scope_metrics
    pushed = {metric.name: metric for metric in scope.metrics}
    assert set(pushed) == {of.TURNS.name, of.TURN_TIME.name, of.LOSS.name}
    [turns] = pushed[of.TURNS.name].sum.data_points
    assert (turns.as_int, turns.attributes[0].key) == (3, "parsed")
    [turn] = pushed[of.TURN_TIME.name].histogram.data_points
    assert tuple(turn.explicit_bounds) == of.TURN_TIME.buckets
    assert pushed[of.LOSS.name].gauge.data_points[0].as_double == -0.5
