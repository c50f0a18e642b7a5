"""The controller's own port, by which a person sees how a run fares and changes it while it runs.

Controls <- ControllerServicer <- port  ...  <run directory>/control.json  ->  tandem status, scale, drain
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from tandem.rpc.door import OPEN, Door
from tandem.rpc.keyring import operable
from tandem.rpc.server import serve
from tandem.types import DataCorrupt, RunStatus, UserError
from tandem_controller.servicer import SERVICE, ControllerServicer

CONTROL_FILE = "control.json"


class Controls(Protocol):
    """What the port does with a run."""

    def status(self) -> RunStatus:
        """How it fares now. Quick: it asks nobody."""
        ...

    async def scale(self, *, rollout: int | None = None, learner: int | None = None) -> None:
        """So many rollout replicas and learner ranks from the next step on; None leaves them as they are.

        Raises:
            UserError: it cannot be.
        """
        ...

    async def drain(self, node: str, why: str) -> None:
        """Take everything off a node in order and place nothing new there; saves at once. Again is harmless.

        Raises:
            UserError: nothing of the run is there.
        """
        ...


@dataclass(frozen=True, slots=True)
class Control:
    """Where a run's controller listens (host:port), which process of which machine it is, since when (Unix seconds)."""

    address: str
    pid: int
    machine: str
    started: float

    @property
    def dead(self) -> bool:
        """True where it can be told that the process is no more: it was this machine's."""
        if self.machine != socket.gethostname():
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
        return False


@asynccontextmanager
async def serve_controls(
    controls: Controls, run_dir: Path, host: str = "127.0.0.1", door: Door = OPEN
) -> AsyncIterator[Control]:
    """Serve `tandem status`, `scale` and `drain` at a free port, told in the run directory, while the body runs.

    Raises:
        UserError: the host is not this machine's, or the run directory cannot be written.
    """
    servicer = ControllerServicer(controls)
    server = await serve(servicer.register, [SERVICE], host=host, door=door)
    try:
        control = Control(server.address, os.getpid(), socket.gethostname(), time.time())
        write_control(run_dir, control)
        try:
            with operable(door.keys, run_dir):
                yield control
        finally:
            if _own(run_dir, control):  # another controller may have taken the run over
                (run_dir / CONTROL_FILE).unlink(missing_ok=True)
    finally:
        await server.stop()
        await servicer.close()


def write_control(run_dir: Path, control: Control) -> None:
    """Write the file whole or not at all, for its owner alone. Raises UserError where it cannot be written."""
    path = run_dir / CONTROL_FILE
    partial = path.with_name(f"{path.name}.{control.pid}.tmp")
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(json.dumps(asdict(control)) + "\n")
        partial.replace(path)
    except OSError as problem:
        raise UserError(f"{path}: cannot be written ({problem.strerror}); choose another run.dir") from problem


def read_control(run_dir: Path) -> Control | None:
    """What the file says; None where there is none: no controller runs, or it runs elsewhere.

    Raises:
        UserError: it may not be read.
        DataCorrupt: it says something else.
    """
    path = run_dir / CONTROL_FILE
    try:
        found = json.loads(path.read_text())
        control = Control(**found)
        if list(map(type, asdict(control).values())) != [str, int, str, float]:
            raise ValueError("values of other types")
        return control
    except FileNotFoundError:
        return None
    except OSError as problem:
        raise UserError(f"{path}: cannot be read ({problem.strerror}); ask as the user who runs it") from problem
    except (ValueError, TypeError) as problem:
        raise DataCorrupt(f"{path}: does not say where a controller listens ({problem}); remove it") from problem


def _own(run_dir: Path, control: Control) -> bool:
    try:
        return read_control(run_dir) == control
    except (UserError, DataCorrupt):
        return False
