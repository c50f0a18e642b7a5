"""`--restarts N`: the controller runs in a process of its own, and where that dies another goes on from its journal.

Whoever starts it again after the whole machine was lost, such as Kubernetes, says the same command: a run that is there
already is resumed.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from tandem.runtime import adopt, end_children
from tandem_controller.past import CONFIG_FILE

OVER = (0, 2)  # done, or something that a person must change first
RESUME = "--resume"


class Controller:
    """The process that controls the run now. A signal goes to it, and nothing is started after one."""

    def __init__(self) -> None:
        self.told_to_end = False
        self._process: subprocess.Popen[bytes] | None = None
        signal.signal(signal.SIGTERM, self._signalled)
        signal.signal(signal.SIGINT, self._signalled)

    def run(self, verb: str, arguments: Sequence[str]) -> int:
        """Its exit code, or minus the signal that ended it."""
        self._process = subprocess.Popen([sys.executable, "-m", "tandem.cli", verb, *arguments])
        return self._process.wait()

    def _signalled(self, number: int, frame: object) -> None:
        self.told_to_end = True
        if number == signal.SIGTERM and self._process is not None:  # a terminal sends SIGINT to both
            self._process.terminate()


def run_restarting(verb: str, arguments: Sequence[str], run_dir: Path, restarts: int, console: Console) -> int:
    """Run `tandem VERB arguments`, with --resume wherever the run is there already, until it ends by itself, is told to
    end, or has died more than `restarts` times in a row without having made a step; the exit code."""
    controller, died = Controller(), 0
    adopt()
    while True:
        before = _steps(run_dir)
        again = (run_dir / CONFIG_FILE).exists() and RESUME not in arguments
        code = controller.run(verb, [*arguments, *([RESUME] if again else [])])
        if code in OVER or controller.told_to_end:
            return code if code >= 0 else 128 - code
        end_children()  # its services and its Ray: they hold the store, and memory
        died = 1 if _steps(run_dir) > before else died + 1
        why = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        if died > restarts:
            console.print(f"the controller ended {why}, {died} times without a step; see above", highlight=False)
            return 1
        console.print(f"the controller ended {why}; it goes on from its journal", highlight=False)


def _steps(run_dir: Path) -> int:
    path = run_dir / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0
