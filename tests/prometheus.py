"""A real Prometheus (Debian's) for tests, and what the dashboards ask of it."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

ROOT = Path(__file__).parents[1]
MISSING = "no Prometheus on this machine (Debian: sudo make system-deps)"
SCRAPE = "500ms"


def there() -> bool:
    """Whether its programs are installed."""
    return bool(shutil.which("prometheus") and shutil.which("promtool"))


@dataclass(frozen=True)
class Asked:
    """A query of a panel, with Grafana's variables in it."""

    page: str
    panel: str
    query: str


def dashboards() -> list[dict[str, Any]]:
    """As committed."""
    return [json.loads(path.read_text()) for path in sorted((ROOT / "deploy/grafana/dashboards").glob("*.json"))]


def asked_by_panels() -> list[Asked]:
    """Every query of every panel that goes to Prometheus."""
    return [
        Asked(page["uid"], panel["title"], target["expr"])
        for page in dashboards()
        for panel in page["panels"]
        for target in panel.get("targets", ())
        if "expr" in target
    ]


def filled(query: str, run: str = "test", window: str = "5m") -> str:
    """As Grafana sends it."""
    values = {"$__rate_interval": window, "$__range": window, "$run": run, "$replica": ".*", "$role": ".*"}
    for name, value in values.items():
        query = query.replace(name, value)
    assert "$" not in query, query
    return query


class Prometheus:
    """One that runs, at `url`."""

    def __init__(self, url: str) -> None:
        self.url = url

    def get(self, path: str, **words: str) -> Any:
        """The data of an answer of its HTTP API."""
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{urlencode(words)}", timeout=10) as answer:
            return json.load(answer)["data"]

    def ask(self, query: str) -> list[dict[str, Any]]:
        """The samples of now."""
        found = self.get("query", query=query)
        return found["result"] if found["resultType"] != "scalar" else [{"value": found["result"]}]


@contextmanager
def prometheus(folder: Path, targets: str, rules: tuple[Path, ...] = ()) -> Iterator[Prometheus]:
    """One that scrapes what the file_sd files `targets` (may hold *) name, every half second."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    job = {"job_name": "tandem", "file_sd_configs": [{"files": [targets], "refresh_interval": "500ms"}]}
    config = {
        "global": {"scrape_interval": SCRAPE, "evaluation_interval": SCRAPE},
        "rule_files": [str(path) for path in rules],
        "scrape_configs": [job],
    }
    (folder / "prometheus.yml").write_text(json.dumps(config))
    command = ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/tsdb"]
    command += [f"--web.listen-address=127.0.0.1:{port}", "--enable-feature=exemplar-storage", "--log.level=error"]
    running = subprocess.Popen(command, cwd=folder)
    try:
        url = f"http://127.0.0.1:{port}"
        until = time.monotonic() + 30
        while not _ready(url):
            assert running.poll() is None and time.monotonic() < until, "Prometheus does not start"
            time.sleep(0.05)
        yield Prometheus(url)
    finally:
        running.terminate()
        running.wait(20)


def _ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/-/ready", timeout=1):
            return True
    except (urllib.error.URLError, OSError):
        return False
