"""A page that is served, and a real browser to look at it. Screenshots lie in build/screenshots."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from view_recordings import Run, learned_run
from view_serving import SHOTS, served


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return learned_run(tmp_path_factory.mktemp("runs") / "maze")


@pytest.fixture(scope="module")
def url(run: Run) -> Iterator[str]:
    with served(run.path) as found:
        yield found


@pytest.fixture(scope="module")  # no longer: while it is there an event loop runs, and async tests could not
def browser() -> Iterator[Any]:
    """Debian's Chromium, which brings no network of its own to these tests."""
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("no chromium here: sudo make system-deps; without it nobody looks at the page of `tandem view`")
    playwright = pytest.importorskip("playwright.sync_api")
    SHOTS.mkdir(parents=True, exist_ok=True)
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        yield opened
        opened.close()


@pytest.fixture
def serve() -> Iterator[Callable[..., str]]:
    """Serves a folder until the test ends."""
    with ExitStack() as stack:
        yield lambda folder, compare=None: stack.enter_context(served(folder, compare))


@pytest.fixture
def look(browser: Any, serve: object) -> Iterator[Callable[..., Any]]:  # pages close before what they ask of is gone
    """Opens a page; at the end no script of it may have failed, been refused, or asked for anything elsewhere."""
    pages, problems = list[Any](), list[str]()

    def open_page(address: str, width: int = 1280, height: int = 860, scheme: str = "light") -> Any:
        context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
        page = context.new_page()
        page.set_default_timeout(15_000)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda said: problems.append(said.text) if said.type in ("error", "warning") else None)
        here = address[: address.index("/", 8) + 1]
        page.on("request", lambda asked: problems.append(asked.url) if foreign(asked.url, here) else None)
        page.goto(address)
        pages.append(page)
        return page

    yield open_page
    for page in pages:
        page.context.close()
    assert problems == []


def foreign(asked: str, here: str) -> bool:
    return not asked.startswith((here, "data:", "file:"))
