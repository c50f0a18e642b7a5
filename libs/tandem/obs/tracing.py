"""Spans: what a process did, when, as part of which trace.

    with trace("step", {"rl.policy_version": 11}, step=12, version=11):      # a trace of its own
        with span("generate"):                                               # its part
            send(..., inject())                                              # ... to another process, which says
                                                                             #     with under(carrier): ...

Until `record` is called nothing is traced, and a span costs next to nothing. A span ends OK, or in error where an
exception leaves its body, a cancellation among them. Words such as `step=12` go wherever the trace goes, also where
nothing is traced: log lines carry them.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from functools import partial
from types import TracebackType
from typing import ParamSpec, TypeAlias, TypeVar

from opentelemetry import baggage
from opentelemetry import trace as otel
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.context import Context, attach, get_current
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

P = ParamSpec("P")
T = TypeVar("T")
Value: TypeAlias = str | bool | int | float | Sequence[str] | Sequence[int] | Sequence[float]
Attributes: TypeAlias = Mapping[str, Value]
Carrier: TypeAlias = Mapping[str, str]
Kind = otel.SpanKind
WORDS = ("step", "version")  # what log lines are told of where they belong; numbers
PARENT, BAGGAGE = "traceparent", "baggage"
NONE: Attributes = {}

_tracer: otel.Tracer | None = None
_share = 0.0
_parents, _words = TraceContextTextMapPropagator(), W3CBaggagePropagator()


def record(tracer: otel.Tracer | None, share: float = 1.0) -> None:
    """From now on, spans are made by `tracer` (None: none are), and `sampled` says yes to such a share of seeds."""
    global _tracer, _share
    _tracer, _share = tracer, share


def sampled(seed: int) -> bool:
    """Whether what belongs to this seed is traced in detail: the same in every process and run."""
    if _tracer is None or _share >= 1:
        return _tracer is not None
    digest = hashlib.blake2b(seed.to_bytes(16, "little", signed=True), digest_size=8).digest()
    return int.from_bytes(digest, "little") < _share * 2**64


class Span:
    """An open span; its body is what it measures, and what is made inside belongs to it."""

    __slots__ = ("_before", "_inside", "_open", "_told")

    def __init__(self, opened: otel.Span, inside: Context) -> None:
        self._open, self._told, self._inside, self._before = opened, False, inside, inside

    def set(self, attributes: Attributes) -> None:
        """More attributes, known by now."""
        self._open.set_attributes(attributes)

    def failed(self, why: str, kind: str) -> None:
        """It ends in error, also where no exception leaves it."""
        self._told = True
        self._open.set_attribute("error.type", kind)
        self._open.set_status(otel.StatusCode.ERROR, why)

    def unset(self) -> None:
        """It ends neither well nor in error."""
        self._told = True

    def link(self, carrier: Carrier) -> None:
        """It goes on from what another trace has made; nothing where `carrier` knows no trace."""
        other = otel.get_current_span(_parents.extract(carrier, Context())).get_span_context()
        if other.is_valid:
            self._open.add_link(other)

    def carrier(self) -> dict[str, str]:
        """As `inject`, of this span, be it the one that goes on or not."""
        return _injected(otel.set_span_in_context(self._open, self._inside))

    def __enter__(self) -> Span:
        self._before = get_current()
        attach(otel.set_span_in_context(self._open, self._inside))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        attach(self._before)  # not by token: a body may be left in another task than it was entered in
        self.end(problem)

    def end(self, problem: BaseException | None = None) -> None:
        """End one whose body is no `with` block; once."""
        if problem is not None and not self._told:
            cancelled = isinstance(problem, asyncio.CancelledError | GeneratorExit)
            self.failed("cancelled" if cancelled else _in_words(problem), type(problem).__name__)
        if not self._told:
            self._open.set_status(otel.StatusCode.OK)
        self._open.end()


class _Nothing(Span):
    """Where nothing is traced."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(otel.INVALID_SPAN, Context())

    def set(self, attributes: Attributes) -> None: ...

    def failed(self, why: str, kind: str) -> None: ...

    def link(self, carrier: Carrier) -> None: ...

    def carrier(self) -> dict[str, str]:
        return inject()

    def __enter__(self) -> Span:
        return self

    def __exit__(self, *_: object) -> None: ...

    def end(self, problem: BaseException | None = None) -> None: ...


NOTHING = _Nothing()


def span(name: str, attributes: Attributes = NONE, *, kind: Kind = Kind.INTERNAL, on: bool = True) -> Span:
    """A part of what goes on; for a `with` statement. Not `on`: none is made."""
    if _tracer is None or not on:
        return NOTHING
    within = get_current()
    return Span(_tracer.start_span(name, within, kind, attributes), within)


def current() -> Span:
    """The span that goes on, to say more of it."""
    return NOTHING if _tracer is None else Span(otel.get_current_span(), get_current())


@contextmanager
def trace(name: str, attributes: Attributes = NONE, **words: int) -> Iterator[Span]:
    """A trace of its own, whatever it is begun in."""
    with under({}), knowing(**words), span(name, attributes) as root:
        yield root


@contextmanager
def knowing(**words: int) -> Iterator[None]:
    """What is said and done in the body knows these words, of `WORDS`."""
    before = inside = get_current()
    for name, number in words.items():
        inside = baggage.set_baggage(name, str(number), inside)
    attach(inside)
    try:
        yield
    finally:
        attach(before)


def inject() -> dict[str, str]:
    """What another process needs so that what it does becomes a part of what goes on here."""
    return _injected(get_current())


@contextmanager
def under(carrier: Carrier) -> Iterator[None]:
    """The body is a part of what `carrier` says goes on somewhere, and of nothing else. It may come from anybody."""
    before = get_current()
    attach(_extracted(carrier))
    try:
        yield
    finally:
        attach(before)


def traced() -> bool:
    """Whether there is a span that goes on."""
    return _tracer is not None and otel.get_current_span().get_span_context().is_valid


def here() -> dict[str, str | int]:
    """For a log line: trace and span, in hex, and `WORDS`, where known."""
    found: dict[str, str | int] = {}
    for name, number in baggage.get_all().items():
        if name in WORDS and (text := str(number)).isdecimal():
            found[name] = int(text)
    at = otel.get_current_span().get_span_context()
    if at.is_valid:
        found |= {"trace_id": otel.format_trace_id(at.trace_id), "span_id": otel.format_span_id(at.span_id)}
    return found


def carried(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Callable[[], T]:
    """The call, for a thread that knows nothing of what goes on here; `asyncio.to_thread` does so by itself."""
    return partial(copy_context().run, partial(call, *args, **kwargs))


def _injected(inside: Context) -> dict[str, str]:
    carrier: dict[str, str] = {}
    _parents.inject(carrier, inside)
    _words.inject(carrier, inside)
    return carrier


def _extracted(carrier: Carrier) -> Context:
    """What is no number under one of our own words does not get in."""
    found = _parents.extract(carrier, Context())
    for name, value in baggage.get_all(_words.extract(carrier, Context())).items():
        if name in WORDS and str(value).isdecimal() and len(str(value)) < 12:
            found = baggage.set_baggage(name, value, found)
    return found


def _in_words(problem: BaseException) -> str:
    return f"{type(problem).__name__}: {problem}"[:500]
