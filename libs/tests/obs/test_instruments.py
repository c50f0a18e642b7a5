"""The table of instruments keeps the conventions that dashboards and collectors rely on."""

import re

import pytest

from tandem.obs.instruments import ALL, Counter, Histogram, Instrument

TARGET = {"run", "role", "index", "node", "job", "instance"}  # labels of the target, which a sample's would hide
ENDING = {"s": "seconds", "By": "bytes", "1": "ratio", "W": "watts", "Cel": "celsius"}


def test_no_two_have_one_name() -> None:
    assert len(ALL) > 60
    assert len({instrument.name for instrument in ALL}) == len(ALL)


@pytest.mark.parametrize("instrument", ALL, ids=lambda instrument: instrument.name)
def test_name_and_labels_are_what_a_scrape_may_show(instrument: Instrument) -> None:
    assert re.fullmatch(r"tandem(_[a-z]+)+", instrument.name)
    assert instrument.name.endswith("_total") == isinstance(instrument, Counter)
    name = instrument.name.removesuffix("_total")
    if not instrument.unit.startswith("{"):  # else a collector that is sent it by OTLP would append the unit
        assert name.endswith(f"_{ENDING[instrument.unit]}")
    assert not TARGET & set(instrument.labels)
    assert instrument.description.endswith(".")


@pytest.mark.parametrize("histogram", [each for each in ALL if isinstance(each, Histogram)], ids=lambda each: each.name)
def test_buckets_rise(histogram: Histogram) -> None:
    assert len(histogram.buckets) > 5
    assert list(histogram.buckets) == sorted(set(histogram.buckets))
