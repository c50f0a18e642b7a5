"""A terminal of a size, in which a program runs: what it shows is on `lines`, as a person would see it."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pyte

WAIT_S = 60.0


class Terminal:
    """Use as a context manager: it ends the program."""

    def __init__(self, program: Sequence[str], width: int = 80, height: int = 20, **environment: str) -> None:
        self.screen = pyte.HistoryScreen(width, height, history=1000, ratio=1)
        self.stream = pyte.ByteStream(self.screen)
        self.raw = b""
        self.end, theirs = pty.openpty()
        self.resize(width, height)
        known = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES", "NO_COLOR", "TERM", "PYTHONUTF8")}
        self.process = subprocess.Popen(
            [sys.executable, *program],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=Path(__file__).parent,
            env={**known, "TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8", **environment},
            start_new_session=True,
        )
        os.close(theirs)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *problem: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.end)

    def resize(self, width: int, height: int) -> None:
        """As a person who pulls at its corner."""
        fcntl.ioctl(self.end, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        self.screen.resize(height, width)

    @property
    def lines(self) -> list[str]:
        """All lines, those scrolled off first, without blank ones at the end."""
        past = ["".join(row[x].data for x in range(self.screen.columns)) for row in self.screen.history.top]
        shown = [line.rstrip() for line in (*past, *self.screen.display)]
        while shown and not shown[-1]:
            shown.pop()
        return shown

    @property
    def cursor_shown(self) -> bool:
        """Whether a person sees where they type."""
        return not self.screen.cursor.hidden

    def until(self, what: Callable[[Terminal], bool]) -> None:
        """Read on until what is shown is so."""
        end = time.monotonic() + WAIT_S
        while not what(self):
            assert time.monotonic() < end, "\n".join(self.lines)
            assert self._read(end - time.monotonic()) or what(self), "it has ended: " + "\n".join(self.lines)

    def wait(self) -> int:
        """Read to the program's end; its exit code."""
        end = time.monotonic() + WAIT_S
        while self._read(end - time.monotonic()):
            assert time.monotonic() < end, "\n".join(self.lines)
        return self.process.wait(WAIT_S)

    def signal(self, number: signal.Signals = signal.SIGINT) -> None:
        """Ctrl-C, or another."""
        os.killpg(self.process.pid, number)

    def _read(self, for_s: float) -> bool:
        """Whether something more came, or may come."""
        if not select.select([self.end], [], [], max(0.0, for_s))[0]:
            return True
        try:
            data = os.read(self.end, 65536)
        except OSError:  # nobody holds the other end any more
            return False
        self.raw += data
        self.stream.feed(data)
        return bool(data)
