"""A process's metrics as a scrape of its port shows them."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from tandem.config import Config
from tandem.obs.metrics import close_metrics, setup_metrics
from tandem.types import Identity, Role


@dataclass(frozen=True, slots=True)
class Scraper:
    """Of the port at host:port."""

    address: str

    def text(self) -> str:
        """What it says."""
        with urllib.request.urlopen(f"http://{self.address}/metrics", timeout=10) as answer:
            return answer.read().decode()

    def values(self) -> dict[str, dict[tuple[str, ...], float]]:
        """Values by name, and by the values of the labels, in the labels' alphabetical order; buckets are left out."""
        found: dict[str, dict[tuple[str, ...], float]] = {}
        for family in text_string_to_metric_families(self.text()):
            for sample in family.samples:
                if "le" not in sample.labels:
                    labels = tuple(value for _, value in sorted(sample.labels.items()))
                    found.setdefault(sample.name, {})[labels] = sample.value
        return found


@contextmanager
def scraping() -> Iterator[Scraper]:
    """Record the metrics of this process while the body runs."""
    config = Config.model_validate({"model": {"path": "m"}, "obs": {"prometheus": True}})
    try:
        yield Scraper(setup_metrics(config, Identity(Role.OPERATOR)))
    finally:
        close_metrics()
