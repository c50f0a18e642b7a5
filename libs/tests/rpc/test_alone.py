"""A service's own command line, as a process: what it prints, how it ends, and with which exit code."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

SERVICE = """
import asyncio, sys
from dataclasses import dataclass
from tandem.rpc.alone import run_alone
from tandem.types import DataCorrupt, NotFound, StaleRequest, Unavailable, UserError

@dataclass
class Running:
    address: str
    ended: asyncio.Future
    async def stop(self):
        print("stopped", flush=True)

async def start(config, *, host, port, door, problem, rank):
    if problem == "slow":
        print("starting", flush=True)
        await asyncio.Event().wait()
    ended = asyncio.get_running_loop().create_future()
    if problem == "late":
        ended.set_exception(Unavailable("rank 0 is gone"))
    elif problem:
        raise globals()[problem](f"about {config.run.name}")
    return Running(f"{host}:{port + rank}", ended)

flags = {"problem": ("", "which"), "rank": (0, "number")}
sys.exit(run_alone("rollout", start, flags=flags, ended=lambda service: service.ended))
"""


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    path = tmp_path / "recipe.yaml"
    path.write_text("model: {path: m}\n")
    return str(path)


def process(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", SERVICE, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_one_line_says_where_and_a_signal_stops_in_order(recipe: str, number: signal.Signals) -> None:
    with process(recipe, "--rank", "2", "run.name=r", "--port", "7") as running:
        assert running.stdout
        assert json.loads(running.stdout.readline()) == {"service": "rollout", "address": "127.0.0.1:9"}
        running.send_signal(number)
        assert running.communicate(timeout=60) == ("stopped\n", "") and running.returncode == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_cuts_a_start_off(recipe: str, number: signal.Signals) -> None:
    with process(recipe, "--problem", "slow") as running:
        assert running.stdout and running.stdout.readline() == "starting\n"
        running.send_signal(number)
        assert running.communicate(timeout=60) == ("", "") and running.returncode == 0


@pytest.mark.parametrize(
    ("problem", "code"),
    [("UserError", 2), ("NotFound", 2), ("DataCorrupt", 2), ("StaleRequest", 1), ("Unavailable", 1)],
)
def test_a_problem_is_one_line_and_an_exit_code(recipe: str, problem: str, code: int) -> None:
    with process(recipe, "run.name=this", "--problem", problem) as running:
        assert running.communicate(timeout=60) == ("", "tandem_rollout: about this\n") and running.returncode == code


def test_a_service_that_ends_by_itself_is_stopped_and_says_why(recipe: str) -> None:
    with process(recipe, "--problem", "late") as running:
        out, err = running.communicate(timeout=60)
    assert out.endswith("stopped\n") and err == "tandem_rollout: rank 0 is gone\n" and running.returncode == 1


def test_a_missing_recipe() -> None:
    with process("no-such.yaml") as running:
        out, err = running.communicate(timeout=60)
    assert running.returncode == 2 and out == "" and err.count("\n") == 1 and "no-such.yaml" in err


def test_a_port_that_others_can_reach_needs_a_lock(recipe: str, tmp_path: Path) -> None:
    with process(recipe, "--host", "0.0.0.0") as running:
        assert running.communicate(timeout=60)[1] == (
            "tandem_rollout: the ports would be open to all who can reach this machine: set security.secret_file or "
            "security.tls_dir, or write security.insecure: true\n"
        )
        assert running.returncode == 2
    (tmp_path / "secret").write_text("x" * 40)
    for allowed in (f"security.secret_file={tmp_path / 'secret'}", "security.insecure=true"):
        with process(recipe, "--host", "0.0.0.0", allowed) as running:
            assert running.stdout and json.loads(running.stdout.readline())["address"] == "0.0.0.0:0"
            running.send_signal(signal.SIGTERM)
            assert running.communicate(timeout=60) == ("stopped\n", "")
