"""The command `tandem view`."""

from __future__ import annotations

import socket
import sys
import webbrowser
from pathlib import Path
from typing import Annotated

import typer
import uvicorn

from tandem.types import UserError
from tandem_viewer.app import build_app
from tandem_viewer.export import write_export
from tandem_viewer.library import Library

HOST = "127.0.0.1"


def view(
    run: Annotated[Path, typer.Argument(help="A run's folder, or one that `tandem eval --save` made.")],
    compare: Annotated[int | None, typer.Option(help="Open the comparison of this version with the newest.")] = None,
    export: Annotated[
        Path | None, typer.Option(help="Write one self-contained HTML file instead of serving a page.")
    ] = None,
    max_mb: Annotated[float, typer.Option(min=1, help="Most megabytes of that file.")] = 20,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on loopback; 0 takes a free one.")] = 0,
    no_open: Annotated[bool, typer.Option("--no-open", help="Do not open a browser.")] = False,
) -> None:
    """Look at a run's episodes in a browser, while it goes on or afterwards."""
    library = Library(run)
    if compare is not None and not any(entry.label.version == compare for _, entry in library.entries()):
        known = sorted({entry.label.version for _, entry in library.entries()})
        raise UserError(f"--compare {compare}: nothing is recorded of that version; there are {_ranges(known)}")
    if export is not None:
        for line in write_export(library, export, int(max_mb * 1e6), compare):
            typer.echo(line)
        return
    with _listening(port) as listening:
        url = f"http://{HOST}:{listening.getsockname()[1]}/"
        typer.echo(f"{run}: {url}  (Ctrl-C ends it)")
        if not no_open:
            webbrowser.open(url)
        sys.stdout.flush()
        config = uvicorn.Config(build_app(library, compare), log_level="warning", access_log=False, server_header=False)
        uvicorn.Server(config).run(sockets=[listening])


def _listening(port: int) -> socket.socket:
    found = socket.socket()
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((HOST, port))
        found.listen()  # a browser that comes at once waits
    except OSError as problem:
        found.close()
        raise UserError(f"--port {port}: {problem.strerror}; take another, or 0 for a free one") from problem
    return found


def _ranges(versions: list[int]) -> str:
    """1-3, 5: for people."""
    found: list[list[int]] = []
    for version in versions:
        if found and version == found[-1][-1] + 1:
            found[-1] = [found[-1][0], version]
        else:
            found.append([version])
    return ", ".join("-".join(map(str, run)) for run in found) or "none"
