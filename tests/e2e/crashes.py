"""Runs that are killed: kill -9 of the controller, at a named point or at an instant, and of all that it has started.

The test's process adopts what a dead controller leaves behind, so that none of it can hide.
"""

import ctypes
import json
import os
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import psutil

from tandem.runtime.faults import VARIABLE
from tests.e2e.runs import command

PR_SET_CHILD_SUBREAPER = 36
TENSORS = ("adapters/v*/*.safetensors", "models/v*/*.safetensors", "states/v*/*.safetensors")
RAYS_OWN = ("ray::DashboardAgent", "ray::RuntimeEnvAgent")
OF_THE_PROCESS = ("time", "seconds", "images_cached", "save/", "fleet/")
GONE_S = 60


class Run:
    """`tandem train`, or another verb, in a process session of its own. Its folder holds what it prints: output.log."""

    def __init__(self, folder: Path, *more: str, fault: str = "", verb: str = "train") -> None:
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        folder.mkdir(exist_ok=True)
        self.folder, self.log = folder, folder / "output.log"
        self.others = {process.pid for process in psutil.Process().children(recursive=True)}
        environment = {**os.environ, **({VARIABLE: fault} if fault else {})}
        with self.log.open("a") as log:
            log.write(f"--- {' '.join(more)} {fault}\n")
            log.flush()
            self.process = subprocess.Popen(
                command(folder, *more, verb=verb),
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env=environment,
                start_new_session=True,
            )

    def wait(self, timeout_s: float = 600) -> int:
        """The controller's exit code: -9 where it was killed."""
        return self.process.wait(timeout_s)

    def rows(self) -> int:
        """Lines of metrics.jsonl."""
        path = self.folder / "e2e/metrics.jsonl"
        return path.read_bytes().count(b"\n") if path.exists() else 0

    def said(self) -> str:
        """All that runs in this folder printed."""
        return self.log.read_text()

    def kill(self) -> None:
        """kill -9 of the controller and of everything it has started, until nothing is left."""
        until = time.monotonic() + GONE_S
        while found := self.alive():
            for process in found:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            assert time.monotonic() < until, found
        self.process.wait()

    def left(self) -> list[str]:
        """What still runs of all that a dead controller had started, after the time it has to end by itself.

        But for two processes of Ray's own, which for about a minute try to tell their dead head of its death.
        """
        until = time.monotonic() + GONE_S
        while (found := [name for name in map(_name, self.alive()) if name not in ("", *RAYS_OWN)]) and (
            time.monotonic() < until
        ):
            time.sleep(0.2)
        return found

    def alive(self) -> list[psutil.Process]:
        """The controller and what it has started. What was adopted and has ended is buried."""
        found = []
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if process.pid in self.others:
                    continue
                if process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
                elif process.ppid() == os.getpid() and process.pid != self.process.pid:
                    os.waitpid(process.pid, os.WNOHANG)
        return found


def _name(process: psutil.Process) -> str:
    with suppress(psutil.NoSuchProcess):
        return " ".join(process.cmdline()).strip()[:100] or process.name()
    return ""


def tensors(folder: Path) -> dict[str, bytes]:
    """All published tensor files of the run in a folder, by path below its store."""
    store = folder / "e2e/checkpoints"
    return {str(path.relative_to(store)): path.read_bytes() for glob in TENSORS for path in store.glob(glob)}


def figures(folder: Path) -> list[dict]:
    """The lines of metrics.jsonl, without what is the process's and not the run's: times, its cache, ends of saves."""
    lines = (folder / "e2e/metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if not k.startswith(OF_THE_PROCESS)} for line in lines]
