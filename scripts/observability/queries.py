"""PromQL over the table of instruments: a name or label that the table lacks is an error here, not an empty panel.

A query is text, as Prometheus 2.42 and later read it. `$__rate_interval` and `$run` are Grafana's to fill in.
"""

from __future__ import annotations

from collections.abc import Iterable

from tandem.obs.instruments import Counter, Histogram, Instrument

TARGET = ("run", "role", "index", "node")  # labels that every series has
THIS_RUN = 'run="$run"'
WINDOW = "$__rate_interval"


class UnknownLabel(ValueError):
    """The instrument has no such label."""


def select(instrument: Instrument, scope: str = THIS_RUN, *, suffix: str = "", **labels: str) -> str:
    """The series of an instrument: `scope` as it is, labels as regular expressions; `suffix` of a histogram."""
    _check(instrument, labels)
    matchers = [scope, *(f'{name}=~"{value}"' for name, value in labels.items())]
    inside = ",".join(filter(None, matchers))
    return f"{instrument.name}{suffix}{{{inside}}}" if inside else instrument.name + suffix


def total(of: str, *by: str) -> str:
    """Summed, apart by these labels."""
    return f"sum by ({', '.join(by)}) ({of})" if by else f"sum({of})"


def highest(of: str, *by: str) -> str:
    """The largest, apart by these labels."""
    return f"max by ({', '.join(by)}) ({of})" if by else f"max({of})"


def rate(counter: Counter, *by: str, scope: str = THIS_RUN, window: str = WINDOW, **labels: str) -> str:
    """How fast a counter grows, a second."""
    _check(counter, by)
    return total(f"rate({select(counter, scope, **labels)}[{window}])", *by)


def grown(counter: Counter, *by: str, scope: str = THIS_RUN, window: str = "$__range", **labels: str) -> str:
    """By how much a counter has grown; without `by` 0 where it has not been counted at all.

    A series begins with its first event, from which `increase` sees no growth: what was not there before counts whole.
    """
    _check(counter, by)
    now = select(counter, scope, **labels)
    return total(f"({now} unless {now} offset {window}) or increase({now}[{window}])", *by) + (
        "" if by else " or vector(0)"
    )


def so_far(counter: Counter, *by: str, scope: str = THIS_RUN, **labels: str) -> str:
    """What the processes that run now have counted."""
    _check(counter, by)
    return total(select(counter, scope, **labels), *by)


def quantile(
    share: float, histogram: Histogram, *by: str, scope: str = THIS_RUN, window: str = WINDOW, **labels: str
) -> str:
    """Below which value such a share lies."""
    _check(histogram, by)
    buckets = f"rate({select(histogram, scope, suffix='_bucket', **labels)}[{window}])"
    return f"histogram_quantile({share:g}, {total(buckets, 'le', *by)})"


def average(histogram: Histogram, *by: str, scope: str = THIS_RUN, window: str = WINDOW, **labels: str) -> str:
    """The mean value."""
    sums, counts = (
        total(f"rate({select(histogram, scope, suffix=suffix, **labels)}[{window}])", *by)
        for suffix in ("_sum", "_count")
    )
    return f"{sums} / {counts}"


def busy(histogram: Histogram, *by: str, scope: str = THIS_RUN, window: str = WINDOW, **labels: str) -> str:
    """Seconds spent a second: how many at once, on average."""
    _check(histogram, by)
    return total(f"rate({select(histogram, scope, suffix='_sum', **labels)}[{window}])", *by)


def happened(histogram: Histogram, *by: str, scope: str = THIS_RUN, window: str = WINDOW, **labels: str) -> str:
    """How many values a second."""
    _check(histogram, by)
    return total(f"rate({select(histogram, scope, suffix='_count', **labels)}[{window}])", *by)


def share(part: str, whole: str) -> str:
    """One over the other."""
    return f"({part}) / ({whole})"


def _check(instrument: Instrument, labels: Iterable[str]) -> None:
    for label in labels:
        if label not in (*TARGET, *instrument.labels):
            raise UnknownLabel(f"{instrument.name} has no label {label}; it has {', '.join(instrument.labels)}")
