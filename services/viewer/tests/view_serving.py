"""The page as it is served, in a thread."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn

from tandem_viewer.app import build_app
from tandem_viewer.library import Library

SHOTS = Path(__file__).parents[3] / "build" / "screenshots"


@contextmanager
def served(folder: Path, compare: int | None = None) -> Iterator[str]:
    """The URL of a page over a folder, on loopback, in a thread of its own."""
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    listening.listen()
    server = uvicorn.Server(uvicorn.Config(build_app(Library(folder), compare), log_level="warning"))
    thread = threading.Thread(target=asyncio.run, args=(server.serve(sockets=[listening]),))
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
    finally:
        server.should_exit = True
        thread.join()
