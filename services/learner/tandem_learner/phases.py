"""Where the seconds of a step went."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

from tandem.obs import span


class Phases:
    """Adds up wall seconds by phase, each time a span: `with phases("pack"): ...`."""

    def __init__(self) -> None:
        self.started = time.perf_counter()
        self.seconds: dict[str, float] = defaultdict(float)

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Count the body's time towards `name`."""
        started = time.perf_counter()
        try:
            with span(name):
                yield
        finally:
            self.seconds[name] += time.perf_counter() - started

    def metrics(self) -> dict[str, float]:
        """`seconds/train/NAME` of every phase, for they are parts of the loop's; and `seconds/train/all` since the
        start."""
        found = {**self.seconds, "all": time.perf_counter() - self.started}
        return {f"seconds/train/{name}": value for name, value in found.items()}
