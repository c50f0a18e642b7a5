"""Environment of every test: a home of its own, one compute thread, nothing that asks the network.

Set here, before any test module is imported, and in os.environ, so that Ray's and vLLM's processes have it.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
from tests.s3 import CREDENTIALS, ENDPOINT, make_bucket, s3_server
from tests.scrape import Scraper, scraping

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "RAY_AUTH_MODE": "disabled",  # the cluster of a test listens on loopback and lives for that test
    "RAY_USAGE_STATS_ENABLED": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "MPLBACKEND": "Agg",
    "NO_COLOR": "1",
}
hypothesis.settings.register_profile("tandem", deadline=None)  # how long an example takes is the machine's business
hypothesis.settings.register_profile("fuzz", deadline=None, max_examples=2000)  # make fuzz
hypothesis.settings.load_profile("tandem")
PR_SET_CHILD_SUBREAPER = 36  # prctl(2)
_home = pytest.StashKey[Path]()


def pytest_configure(config: pytest.Config) -> None:
    """Set the environment. The home's path is short, since Ray's Unix sockets lie below it."""
    home = Path(tempfile.mkdtemp(prefix="tandem-"))
    config.stash[_home] = home
    os.environ.update(ENVIRONMENT, HOME=str(home), XDG_CACHE_HOME=str(home / "cache"))
    os.environ["TANDEM_RAY_TEMP_DIR"] = str(home / "ray")
    os.environ.pop("RAY_ADDRESS", None)  # a test that wants a cluster names it


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the home."""
    shutil.rmtree(config.stash[_home], ignore_errors=True)


@pytest.fixture
def scraper() -> Iterator[Scraper]:
    """This process's metrics, which are recorded meanwhile."""
    with scraping() as found:
        yield found


@pytest.fixture(scope="module", autouse=True)
def adopts_nobody() -> Iterator[None]:
    """A test may have made its process the parent of orphans; those of the next file's tests would stay zombies."""
    yield
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """The URL of a real S3-speaking server."""
    with s3_server() as url:
        yield url


@pytest.fixture
def s3_url(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """An s3:// URL in a bucket of the test's own; processes that the test starts reach it, too."""
    for name, value in (*CREDENTIALS.items(), (ENDPOINT, s3_endpoint)):
        monkeypatch.setenv(name, value)
    return f"s3://{make_bucket()}/store"
