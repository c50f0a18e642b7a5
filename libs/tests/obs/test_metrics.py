"""Metrics as a scrape shows them: the real SDK, the real port, parsed by Prometheus's own client."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace import TracerProvider
from prometheus_client import parser
from prometheus_client.openmetrics import parser as open_parser
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST
from prometheus_client.samples import Sample

from tandem.config import Config
from tandem.obs import instruments as of
from tandem.obs.metrics import close_metrics, count, gauge, observe, setup_metrics, timed, watch
from tandem.types import Identity, Role, UserError

CONFIG = Config.model_validate({"run": {"name": "r"}, "model": {"path": "m"}, "obs": {"prometheus": True}})
ME = Identity(Role.ROLLOUT, 3)


@pytest.fixture
def address() -> Iterator[str]:
    yield setup_metrics(CONFIG, ME, node="n1")
    close_metrics()


def get(address: str, accept: str = "text/plain") -> str:
    request = urllib.request.Request(f"http://{address}/metrics", headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return answer.read().decode()


def scraped(address: str) -> dict[str, list[Sample]]:
    found: dict[str, list[Sample]] = {}
    for family in parser.text_string_to_metric_families(get(address)):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample)
    return found


def test_a_scrape_shows_every_instrument_under_its_very_name_with_its_labels(address: str) -> None:
    for instrument in of.ALL:
        labels = {label: f"some {label}" for label in instrument.labels}
        if isinstance(instrument, of.Counter):
            count(instrument, 2.5, **labels)
        elif isinstance(instrument, of.Histogram):
            observe(instrument, 0.7, **labels)
        elif isinstance(instrument, of.Gauge):
            gauge(instrument, -1.5, **labels)
    found = scraped(address)
    for instrument in of.ALL:
        histogram = isinstance(instrument, of.Histogram)
        [sample] = found[f"{instrument.name}_sum" if histogram else instrument.name]
        assert sample.labels == {label: f"some {label}" for label in instrument.labels}
        assert sample.value == (2.5 if isinstance(instrument, of.Counter) else 0.7 if histogram else -1.5)
    [who] = found["target_info"]
    assert who.labels == {"run": "r", "role": "rollout", "index": "3", "node": "n1"}
    assert found["process_resident_memory_bytes"][0].value > 0


def test_a_distribution_is_counted_in_its_buckets(address: str) -> None:
    for seconds in (0.0005, 0.005, 0.9, 1000.0):
        observe(of.TURN_TIME, seconds)
    found = scraped(address)
    buckets = {sample.labels["le"]: sample.value for sample in found[f"{of.TURN_TIME.name}_bucket"]}
    assert [float(bound) for bound in buckets] == [*of.TURN_TIME.buckets, float("inf")]
    assert (buckets["0.005"], buckets["1.0"], buckets["60.0"], buckets["+Inf"]) == (2, 3, 3, 4)
    assert found[f"{of.TURN_TIME.name}_count"][0].value == 4


def test_what_is_watched_is_asked_when_it_is_scraped(address: str) -> None:
    queue = [1, 2]
    end = watch(of.UNITS_WAITING, lambda: len(queue))
    watch(of.MEMBERS, lambda: None, member_role="learner")
    watch(of.COST, lambda: 1.5 * len(queue), currency="USD")
    queue.append(3)
    found = scraped(address)
    assert found[of.UNITS_WAITING.name][0].value == 3
    assert found[of.COST.name][0].value == 4.5
    assert of.MEMBERS.name not in found
    end()
    assert of.UNITS_WAITING.name not in scraped(address)


def test_a_slow_turn_leads_to_its_trace(address: str) -> None:
    with TracerProvider().get_tracer("t").start_as_current_span("turn") as span:
        observe(of.TURN_TIME, 7.0)
    observe(of.TURN_TIME, 0.3)
    accept = f"{CONTENT_TYPE_LATEST},text/plain;q=0.5"
    [family] = [
        found
        for found in open_parser.text_string_to_metric_families(get(address, accept))
        if found.name == of.TURN_TIME.name
    ]
    exemplars = {sample.labels["le"]: sample.exemplar for sample in family.samples if sample.exemplar}
    assert list(exemplars) == ["10.0"]
    at = span.get_span_context()
    assert exemplars["10.0"].labels == {"trace_id": f"{at.trace_id:032x}", "span_id": f"{at.span_id:016x}"}
    assert exemplars["10.0"].value == 7.0


def test_a_body_is_timed_also_where_it_raises(address: str) -> None:
    with pytest.raises(ZeroDivisionError), timed(of.ENV_TIME, call="step"):
        _ = 1 / 0
    [sample] = scraped(address)[f"{of.ENV_TIME.name}_count"]
    assert (sample.value, sample.labels) == (1, {"call": "step"})


def test_labels_are_those_of_the_table(address: str) -> None:
    with pytest.raises(AssertionError):
        count(of.TURNS)
    with pytest.raises(AssertionError):
        count(of.TURNS, parsed="true", more="x")


def test_off_nothing_is_recorded_and_no_port_is_open() -> None:
    off = CONFIG.model_copy(update={"obs": CONFIG.obs.model_copy(update={"prometheus": False})})
    assert setup_metrics(off, ME) == ""
    count(of.STEPS)
    observe(of.TURN_TIME, 1.0)
    watch(of.QUIET, lambda: 1.0)()
    with timed(of.TURN_TIME):
        pass
    address = setup_metrics(CONFIG, ME)
    assert not [name for name in scraped(address) if name.startswith("tandem_")]
    close_metrics()
    with pytest.raises(OSError, match="refused"):
        get(address)


def test_a_host_that_is_not_this_machine_is_refused_in_a_line() -> None:
    with pytest.raises(UserError, match=r"metrics cannot be served on 192\.0\.2\.1: .*; set obs\.prometheus to false"):
        setup_metrics(CONFIG, ME, "192.0.2.1")
