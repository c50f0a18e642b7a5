"""Rank 0's orders to the other ranks and their answers: bytes in the ranks' key-value store, no pickle.

Between orders a follower waits on a key, outside of any collective: it may wait for days without a
collective's timeout, and learns at once when rank 0 is gone.

    order/N/I       pieces of order N         go/N/RANK       how many they are: written last, for each follower
    answer/N/RANK   a follower's answer
    sent/T/I        RANK and what became of its shard of the export with ticket T, which outlasts its order; the I-th
                    to be told, counted in sent/T
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from datetime import timedelta

import torch.distributed as dist

from tandem.types import Unavailable

PIECE_BYTES = 2**22  # the store refuses values above 8 MiB
FOREVER = timedelta(days=365)
RELEASED = b""  # written by the side that waits itself, to end its wait


class Channel:
    """One follower's end, or rank 0's end towards one follower. Waits block: make them in a thread."""

    def __init__(self, connect: Callable[[], dist.Store], rank: int) -> None:
        self.rank = rank  # the follower's
        self._connect = connect
        self._waits = dist.PrefixStore("orders", connect())  # a wait holds up its connection
        self._store = dist.PrefixStore("orders", connect())

    def post_pieces(self, number: int, order: bytes) -> int:
        """Rank 0: lay order `number` down, once for all followers; returns the number of pieces."""
        starts = range(0, len(order), PIECE_BYTES)
        for index, start in enumerate(starts):
            self._set(f"order/{number}/{index}", order[start : start + PIECE_BYTES])
        return len(starts)

    def go(self, number: int, pieces: int) -> None:
        """Rank 0: have the follower take the order."""
        self._set(f"go/{number}/{self.rank}", str(pieces).encode())

    def await_answer(self, number: int, timeout_s: float) -> bytes:
        """Rank 0: the follower's answer, or RELEASED. Raises Unavailable where it does not come in time."""
        try:
            return self._wait(f"answer/{number}/{self.rank}", timedelta(seconds=timeout_s))
        except dist.DistStoreError as problem:
            raise Unavailable(
                f"learner rank {self.rank}: no answer within {timeout_s:g} s; it may be dead"
            ) from problem

    def release_answer(self, number: int) -> None:
        """Rank 0: end the wait for an answer."""
        self._set(f"answer/{number}/{self.rank}", RELEASED)

    def await_reports(self, ticket: int, ranks: Collection[int], timeout_s: float) -> Iterator[tuple[int, bytes]]:
        """Rank 0: followers' ranks and what became of their shards, as they tell it.

        Raises Unavailable where one does not come in time, or where the wait was released.
        """
        store = dist.PrefixStore("orders", self._connect())  # of its own: orders go on meanwhile
        until = time.monotonic() + timeout_s
        missing = set(ranks)
        while missing:
            key = f"sent/{ticket}/{len(ranks) - len(missing) + 1}"
            try:
                store.wait([key], timedelta(seconds=max(0.001, until - time.monotonic())))
            except dist.DistStoreError as problem:
                raise Unavailable(
                    f"learner rank {min(missing)}: its shard was not sent within {timeout_s:g} s; it may be dead"
                ) from problem
            rank, _, report = store.get(key).partition(b" ")
            store.delete_key(key)
            if not report:
                raise Unavailable("learner: sending the shards was given up")
            missing.remove(int(rank))
            yield int(rank), report
        store.delete_key(f"sent/{ticket}")

    def release_reports(self, ticket: int) -> None:
        """Rank 0: end the wait for reports."""
        self._tell(ticket, RELEASED)

    def forget(self, number: int, pieces: int) -> None:
        """Rank 0: drop an order that all have answered, and the follower's answer."""
        keys = [f"order/{number}/{index}" for index in range(pieces)]
        for key in (*keys, f"go/{number}/{self.rank}", f"answer/{number}/{self.rank}"):
            self._store.delete_key(key)

    def await_order(self, number: int) -> bytes:
        """A follower: order `number`, or RELEASED. Raises Unavailable once rank 0 is gone."""
        try:
            pieces = self._wait(f"go/{number}/{self.rank}", FOREVER)
            return b"".join(self._store.get(f"order/{number}/{index}") for index in range(int(pieces or b"0")))
        except dist.DistNetworkError as problem:
            raise Unavailable(f"learner rank 0 is gone: {problem}") from problem

    def release_order(self, number: int) -> None:
        """A follower: end its own wait. Harmless once rank 0 is gone, which has ended it already."""
        try:
            self._set(f"go/{number}/{self.rank}", RELEASED)
        except dist.DistNetworkError:
            return

    def answer(self, number: int, answer: bytes) -> None:
        """A follower: the answer to order `number`. Raises Unavailable once rank 0 is gone."""
        try:
            self._set(f"answer/{number}/{self.rank}", answer)
        except dist.DistNetworkError as problem:
            raise Unavailable(f"learner rank 0 is gone: {problem}") from problem

    def report(self, ticket: int, report: bytes) -> None:
        """A follower: what became of its shard. Harmless once rank 0 is gone, which the wait for orders finds out."""
        try:
            self._tell(ticket, b"%d %b" % (self.rank, report))
        except dist.DistNetworkError:
            return

    def _tell(self, ticket: int, said: bytes) -> None:
        self._set(f"sent/{ticket}/{self._store.add(f'sent/{ticket}', 1)}", said)

    def _wait(self, key: str, timeout: timedelta) -> bytes:
        self._waits.wait([key], timeout)
        return self._waits.get(key)

    def _set(self, key: str, value: bytes) -> None:
        self._store.set(key, value)  # pyright: ignore[reportArgumentType] - it takes bytes
