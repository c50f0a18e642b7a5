"""What a run costs, by the recipe's prices."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Lock

from tandem.config import CostConfig

HOUR_S = 3600.0


def price(cost: CostConfig, seconds: float, gpus: int) -> float:
    """Of a time with so many GPUs, in `cost.currency`."""
    per_hour = sum(machine.count * machine.per_hour for machine in cost.machines) + gpus * cost.per_gpu_hour
    return seconds / HOUR_S * per_hour


class Spending:
    """Adds up what is spent as time goes by. Threads may ask at once."""

    def __init__(self, cost: CostConfig, gpus: Callable[[], int], clock: Callable[[], float] = time.monotonic) -> None:
        """`gpus`: how many the run has now."""
        self._cost, self._gpus, self._clock = cost, gpus, clock
        self._lock = Lock()
        self._at, self._had = clock(), gpus()
        self._gpu_seconds = self._money = 0.0

    def gpu_seconds(self) -> float:
        """Seconds times GPUs, until now."""
        self.look()
        return self._gpu_seconds

    def money(self) -> float:
        """Until now."""
        self.look()
        return self._money

    def look(self) -> None:
        """Look how many GPUs there are: what it had at the last look counts until now."""
        with self._lock:
            seconds, self._at = (now := self._clock()) - self._at, now
            self._gpu_seconds += seconds * self._had
            self._money += price(self._cost, seconds, self._had)
            self._had = self._gpus()
