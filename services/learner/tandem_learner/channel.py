"""Rank 0's orders to the other ranks and their answers: bytes in the ranks' key-value store, no pickle.

Between orders a follower waits on a key, outside of any collective: it may wait for days without a
collective's timeout.

    order/N          how many pieces; written after them         order/N/I   the pieces
    answer/N/RANK    a follower's answer
"""

from __future__ import annotations

from datetime import timedelta

import torch.distributed as dist

from tandem.types import Unavailable

PIECE_BYTES = 2**22  # the store refuses values above 8 MiB
POLL_S = 2.0  # how long a follower's wait lasts before it looks whether it should stop


class Channel:
    """One end of it. Calls block: make them in a thread, one thread per client of the store."""

    def __init__(self, store: dist.Store) -> None:
        self.store = dist.PrefixStore("orders", store)

    def post(self, number: int, order: bytes) -> None:
        """Rank 0: give order `number` to all others."""
        pieces = [order[at : at + PIECE_BYTES] for at in range(0, len(order), PIECE_BYTES)]
        for index, piece in enumerate(pieces):
            self.store.set(f"order/{number}/{index}", piece)  # pyright: ignore[reportArgumentType] - takes bytes
        self.store.set(f"order/{number}", str(len(pieces)))

    def await_answer(self, number: int, rank: int, timeout_s: float) -> bytes:
        """Rank 0: a follower's answer. Raises Unavailable where it does not come in time."""
        key = f"answer/{number}/{rank}"
        if not self._wait(key, timeout_s):
            raise Unavailable(f"learner rank {rank}: no answer within {timeout_s:g} s; it may be dead")
        return self.store.get(key)

    def forget(self, number: int, world_size: int) -> None:
        """Rank 0: drop an order that all have answered."""
        for index in range(int(self.store.get(f"order/{number}"))):
            self.store.delete_key(f"order/{number}/{index}")
        for key in (f"order/{number}", *(f"answer/{number}/{rank}" for rank in range(1, world_size))):
            self.store.delete_key(key)

    def poll_order(self, number: int) -> bytes | None:
        """A follower: order `number`, or None if it is not there yet. Raises Unavailable without rank 0."""
        if not self._wait(f"order/{number}", POLL_S):
            return None
        pieces = int(self.store.get(f"order/{number}"))
        return b"".join(self.store.get(f"order/{number}/{index}") for index in range(pieces))

    def answer(self, number: int, rank: int, answer: bytes) -> None:
        """A follower: the answer to order `number`."""
        self.store.set(f"answer/{number}/{rank}", answer)  # pyright: ignore[reportArgumentType] - takes bytes

    def _wait(self, key: str, timeout_s: float) -> bool:
        try:
            self.store.wait([key], timedelta(seconds=timeout_s))
        except dist.DistStoreError:
            return False
        except dist.DistNetworkError as problem:
            raise Unavailable(f"learner rank 0 is gone: {problem}") from problem
        return True
