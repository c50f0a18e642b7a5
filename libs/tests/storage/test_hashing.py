"""Work done beside the caller: in order, within bounds, and never a failure lost."""

from __future__ import annotations

import hashlib
from threading import Event

import pytest

from tandem.storage import measure
from tandem.storage.hashing import AHEAD, behind


def test_items_are_worked_on_in_order_and_all_are_done_at_the_end() -> None:
    done: list[int] = []
    with behind(done.append) as put:
        for item in range(1000):
            put(item)
    assert done == list(range(1000))


def test_the_caller_waits_for_what_falls_behind() -> None:
    go, given = Event(), 0
    made: list[int] = []

    def slow(item: int) -> None:
        go.wait(60)
        # what was put before this item is done: no more than the bound can be waiting
        made.append(given - len(made))

    with behind(slow) as put:
        for given in range(1, AHEAD + 2):
            put(given)
        go.set()
        for given in range(AHEAD + 2, 100):
            put(given)
    assert len(made) == 99 and max(made) <= AHEAD + 2


def test_a_failure_is_raised_where_the_caller_comes_back() -> None:
    def fail(item: int) -> None:
        raise OSError(f"item {item}")

    with pytest.raises(OSError, match="item 0"), behind(fail) as put:
        put(0)
    with pytest.raises(OSError, match="item 0"), behind(fail) as put:
        for item in range(AHEAD + 2):
            put(item)


def test_measure_hashes_and_counts_what_it_writes() -> None:
    pieces = [b"a" * 5, b"", b"b" * 3_000_000]
    written: list[bytes] = []
    entry = measure(pieces, written.append)
    assert written == pieces
    assert (entry.sha256, entry.size) == (hashlib.sha256(b"".join(pieces)).hexdigest(), 3_000_005)
