"""`tandem top`: the table of a run that runs, in another terminal, for as long as it runs."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.text import Text

from tandem.runtime import pause, until_signal
from tandem.types import RunStatus, UserError
from tandem_controller.control import read_control
from tandem_controller.control_cli import RunDir, connected
from tandem_controller.live import view
from tandem_controller.pages import HTML
from tandem_controller.screen import drawable, plain, shown
from tandem_controller.sessions import FINISHED, STOPPED, read_sessions
from tandem_controller.status_tables import ago

PATIENCE_S = 600.0


class Watcher:
    """What was last heard of a run, and why nothing has been heard since."""

    def __init__(self, run_dir: Path, patience_s: float) -> None:
        self.run_dir, self.patience_s = run_dir, patience_s
        self.status: RunStatus | None = None
        self.trouble, self._since = "", 0.0

    async def look(self) -> str:
        """Ask once more; a line where the run has ended, else nothing.

        Raises:
            UserError: it has not answered at all yet, or not for `patience_s`: why.
        """
        try:
            async with connected(self.run_dir) as (_, self.status):
                self.trouble = ""
        except UserError as problem:
            if self.status is None:
                raise
            if over := ended(self.run_dir, self.status):
                return over
            self._since = self._since if self.trouble else time.monotonic()
            self.trouble = str(problem)
            if time.monotonic() - self._since > self.patience_s:
                raise
        return ""

    def table(self, width: int, ascii_only: bool) -> RenderableType:
        """For the screen."""
        if self.status is None:
            return Text("")
        table = view(self.status, time.time(), width, ascii_only)
        if not self.trouble:
            return table
        silent = f"waiting for its controller, silent for {ago(time.monotonic() - self._since)}: {self.trouble}"
        return Group(table, Text(silent, "yellow"))

    def line(self) -> str:
        """For where no table can be drawn; the same as long as nothing has come of the run."""
        if self.status is None or self.trouble:
            return f"waiting for its controller: {self.trouble}"
        status, step = self.status, self.status.recent[-1:]
        solved = "".join(f", solved {item.solve_rate:.1%}" for item in step if item.solve_rate is not None)
        seconds = "".join(f", {item.seconds:.1f} s a step" for item in step)
        return f"{status.name}: step {status.version} of {status.steps}, {status.phase}{solved}{seconds}"


def ended(run_dir: Path, status: RunStatus) -> str:
    """The line that says that a run has ended, how, and how far it came; nothing where its controller may come back,
    for it was killed, or has yet to write its report."""
    if read_control(run_dir) is not None:
        return ""
    sessions = read_sessions(run_dir)
    last = sessions[-1].ended if sessions else None
    if last is None:
        return ""
    far = f"at step {last.version} of {status.steps}"
    if last.how == FINISHED:
        return f"{status.name} has finished {far}; its report: {run_dir / HTML}"
    why = f": {last.why}" if last.why else ""
    return f"{status.name} has {'been ' * (last.how == STOPPED)}{last.how} {far}{why}; --resume continues it"


def top(
    run_dir: RunDir,
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between looks.")] = 1.0,
    patience: Annotated[float, typer.Option(min=0, help="Seconds to wait for a controller that is gone.")] = PATIENCE_S,
) -> None:
    """Watch a run: the table that `tandem train` shows, kept true until the run ends or Ctrl-C."""
    console = Console()
    if over := asyncio.run(_watch(Watcher(run_dir, patience), console, every)):
        console.print(over, highlight=False, soft_wrap=True, markup=False)


async def _watch(watcher: Watcher, console: Console, every_s: float) -> str:
    await watcher.look()  # where it does not run at all, that is said before the screen is taken
    asked = asyncio.create_task(until_signal())
    looking = asyncio.create_task(_look_on(watcher, console, every_s))
    try:
        async with shown(console, lambda: watcher.table(console.width, plain(console)), alone=True):
            await asyncio.wait({asked, looking}, return_when=asyncio.FIRST_COMPLETED)
        return looking.result() if looking.done() else ""
    finally:
        asked.cancel()
        looking.cancel()


async def _look_on(watcher: Watcher, console: Console, every_s: float) -> str:
    """Until the run has ended: the line that says so."""
    told = ""
    while True:
        if not drawable(console) and (line := watcher.line()) != told:
            console.print(line, highlight=False, soft_wrap=True, markup=False)
            told = line
        await pause(every_s)
        if over := await watcher.look():
            return over
