"""Recording figures: `count`, `observe` and `gauge`, by the instruments of the table. Until `setup_metrics` has been
called with metrics on, each is one comparison.

    count(TURNS, parsed="true")          observe(TURN_TIME, seconds)          gauge(SOLVE, 0.8)
    with timed(ENV_TIME, call="step"): ...                                    watch(UNITS_WAITING, lambda: len(queue))

Labels are given in the table's order. OpenTelemetry holds the figures; they are scraped, pushed by OTLP, or both.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tandem.config import Config
from tandem.obs.instruments import Counter, Gauge, Histogram
from tandem.obs.process import at_end, resource
from tandem.types import Identity

if TYPE_CHECKING:
    from tandem.obs.meters import Meters

_live: Meters | None = None


def count(counter: Counter, amount: float = 1.0, **labels: str) -> None:
    """Add to a counter."""
    if _live is not None:
        _live.add(counter, amount, labels)


def observe(histogram: Histogram, value: float, **labels: str) -> None:
    """Add a value to a distribution. Under a span that is sampled it may become an exemplar."""
    if _live is not None:
        _live.record(histogram, value, labels)


def gauge(instrument: Gauge, value: float, **labels: str) -> None:
    """Say what is now."""
    if _live is not None:
        _live.hold(instrument, lambda: value, labels)


def watch(instrument: Gauge | Counter, ask: Callable[[], float | None], **labels: str) -> Callable[[], None]:
    """Have `ask` say what is now, or how much it is by now, whenever somebody wants to know; None: nothing. It is
    called in other threads. Returns what ends it."""
    if _live is None:
        return _nothing
    return _live.hold(instrument, ask, labels)


@contextmanager
def timed(histogram: Histogram, **labels: str) -> Iterator[None]:
    """Observe the seconds that the body takes, also where it raises."""
    if _live is None:
        yield
        return
    began = time.perf_counter()
    try:
        yield
    finally:
        _live.record(histogram, time.perf_counter() - began, labels)


def setup_metrics(config: Config, me: Identity, host: str = "127.0.0.1", node: str = "") -> str:
    """Record from now on, where the config asks for it. Call once a process; again replaces what was before.

    Args:
        host: where the port listens that is scraped.
        node: the name of this process's node.
    Returns:
        host:port of the scraped port; empty where there is none.
    Raises:
        UserError: the host is not this machine's.
    """
    global _live
    close_metrics()
    if not config.obs.measured:
        return ""
    from tandem.obs.meters import Meters  # noqa: PLC0415 - OpenTelemetry's SDK takes a quarter of a second

    _live = Meters(
        target(config, me, node), resource(config, me, node), host if config.obs.prometheus else "", config.obs.otlp
    )
    at_end(close_metrics)
    return _live.address


def target(config: Config, me: Identity, node: str) -> dict[str, str]:
    """The labels of all that a process records."""
    return {"run": config.run.name, "role": str(me.role), "index": str(me.index), "node": node}


def scraped_at() -> str:
    """host:port where this process's metrics are scraped; empty where they are not."""
    return _live.address if _live is not None else ""


def close_metrics() -> None:
    """Record nothing more; what is pushed is pushed a last time."""
    global _live
    meters, _live = _live, None
    if meters is not None:
        meters.close()


def _nothing() -> None:
    return
