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

GIVES_UP = (0, 2)  # done, or something that a person must change first


def run_restarting(verb: str, arguments: Sequence[str], run_dir: Path, restarts: int, console: Console) -> int:
    """Run `tandem VERB arguments`, with --resume wherever the run is there already, until it ends by itself or has died
    more than `restarts` times in a row without having made a step; the exit code."""
    died = 0
    adopt()
    while True:
        before = _steps(run_dir)
        code = _run(verb, [*arguments, *(["--resume"] if (run_dir / CONFIG_FILE).exists() else [])])
        if code in GIVES_UP:
            return code
        end_children()  # its services and its Ray: they hold the store, and memory
        died = 1 if _steps(run_dir) > before else died + 1
        why = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        if died > restarts:
            console.print(f"the controller ended {why}, {died} times without a step; see above", highlight=False)
            return 1
        console.print(f"the controller ended {why}; it goes on from its journal", highlight=False)


def _run(verb: str, arguments: Sequence[str]) -> int:
    child = subprocess.Popen([sys.executable, "-m", "tandem.cli", verb, *arguments])
    signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    signal.signal(signal.SIGINT, lambda *_: None)  # a terminal sends it to the child as well
    return child.wait()


def _steps(run_dir: Path) -> int:
    path = run_dir / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0
