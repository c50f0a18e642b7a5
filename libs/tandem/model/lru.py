"""A dictionary that forgets what was used longest ago."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class LRU(Generic[K, V]):
    """Entries of at most `size` in all, each of size 1 or what `weigh` says; reading an entry makes it the newest."""

    def __init__(self, size: int, weigh: Callable[[V], int] = lambda value: 1) -> None:
        self.size = size
        self.used = 0
        self._weigh = weigh
        self._entries: OrderedDict[K, V] = OrderedDict()

    def get(self, key: K) -> V | None:
        """The value, or None."""
        if key not in self._entries:
            return None
        self._entries.move_to_end(key)
        return self._entries[key]

    def __getitem__(self, key: K) -> V:
        self._entries.move_to_end(key)
        return self._entries[key]

    def __setitem__(self, key: K, value: V) -> None:
        if key in self._entries:
            self.used -= self._weigh(self._entries.pop(key))
        self._entries[key] = value
        self.used += self._weigh(value)
        while self.used > self.size:
            self.used -= self._weigh(self._entries.popitem(last=False)[1])

    def __len__(self) -> int:
        return len(self._entries)
