"""The controller's port over real gRPC, its file in the run directory, and what the command line makes of both."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import pytest_asyncio
from control_runs import STATUS, Run
from rich.console import Console

from tandem.config import SecurityConfig
from tandem.rpc.controller_client import ControllerClient
from tandem.rpc.keyring import OPERATOR_TOKEN, open_keyring
from tandem.types import Identity, Role, UserError
from tandem_controller.control import CONTROL_FILE, Control, read_control, serve_controls, write_control
from tandem_controller.past import CONFIG_FILE, FACTS_FILE
from tandem_controller.status_tables import ago, print_status


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run's folder."""
    folder = tmp_path / "maze"
    folder.mkdir()
    (folder / CONFIG_FILE).write_text("model: {path: m}\n")
    (folder / FACTS_FILE).write_text(json.dumps({"run_id": STATUS.run_id, "code": "1"}))
    return folder


@pytest.fixture
def run() -> Run:
    """The run that the port drives."""
    return Run()


@pytest_asyncio.fixture
async def control(run: Run, run_dir: Path) -> AsyncIterator[Control]:
    """Its port."""
    async with serve_controls(run, run_dir) as served:
        yield served


@pytest_asyncio.fixture
async def client(control: Control) -> AsyncIterator[ControllerClient]:
    """Of that port."""
    made = ControllerClient(control.address)
    yield made
    await made.close()


async def tandem(*arguments: object) -> tuple[int, str, str]:
    """The command line as a process: exit code, stdout, stderr."""
    command = [sys.executable, "-m", "control_command", *map(str, arguments)]
    environment = {**os.environ, "COLUMNS": "200"}
    done = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, timeout=120, cwd=Path(__file__).parent, env=environment
    )
    return done.returncode, done.stdout, done.stderr


async def test_status_travels_whole(client: ControllerClient) -> None:
    assert await client.status() == STATUS


async def test_a_drain_whose_caller_gives_up_is_not_left_half_done(tmp_path: Path) -> None:
    class Slow(Run):
        begun, go_on, done = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def drain(self, node: str, why: str) -> None:
            self.begun.set()
            await self.go_on.wait()
            await super().drain(node, why)
            self.done.set()

    run = Slow()
    async with serve_controls(run, tmp_path) as control:
        client = ControllerClient(control.address)
        asking = asyncio.create_task(client.drain("node-2", "a new disk"))
        await asyncio.wait_for(run.begun.wait(), 60)
        asking.cancel()
        await asyncio.wait({asking})
        await client.status()  # by now the server has heard of it
        run.go_on.set()
        await asyncio.wait_for(run.done.wait(), 60)
        await client.close()
    assert run.asked == [("drain", "node-2", "a new disk")]


async def test_where_the_door_is_locked_the_owner_of_the_folder_has_a_key(run: Run, run_dir: Path) -> None:
    keyring = open_keyring(SecurityConfig(mode="token"), loopback=True)
    async with serve_controls(run, run_dir, door=keyring.door(Identity(Role.CONTROLLER))) as control:
        code, out, _ = await tandem("status", run_dir)
        assert code == 0 and "generate" in out
        assert stat.S_IMODE(os.stat(run_dir / OPERATOR_TOKEN).st_mode) == 0o600
        (run_dir / OPERATOR_TOKEN).unlink()
        code, out, error = await tandem("status", run_dir)
        assert code == 2 and error.count("\n") == 1 and f"controller at {control.address}: no token came" in error
    assert not (run_dir / OPERATOR_TOKEN).exists()


async def test_numbers_and_nodes_arrive(client: ControllerClient, run: Run) -> None:
    await client.scale(rollout=3)
    await client.scale(learner=2, rollout=1)
    await client.drain("node-2", "it is\ngoing\tdown")
    await client.drain("node-2", "")
    assert run.asked == [
        ("scale", 3, None),
        ("scale", 1, 2),
        ("drain", "node-2", "it is going down"),
        ("drain", "node-2", "asked for"),
    ]


@pytest.mark.parametrize(
    "wanted", [{}, {"rollout": 0}, {"learner": 0, "rollout": 1}, {"rollout": 2**31}, {"learner": 9}]
)
async def test_impossible_numbers_are_refused_and_change_nothing(
    client: ControllerClient, run: Run, wanted: dict[str, int]
) -> None:
    with pytest.raises(UserError, match=r"scale: |learner=9: the Ray cluster has room for 8"):
        await client.scale(**wanted)
    assert run.asked == []


async def test_a_drain_names_a_node(client: ControllerClient, run: Run) -> None:
    with pytest.raises(UserError, match="name a node"):
        await client.drain(" \n", "why")
    assert run.asked == []


async def test_the_file_is_its_owners_and_goes_with_the_port(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "not" / "there yet"
    async with serve_controls(run, folder) as served:
        file = folder / CONTROL_FILE
        assert stat.S_IMODE(file.stat().st_mode) == 0o600 and read_control(folder) == served
        assert (served.pid, served.dead) == (os.getpid(), False)
        assert os.listdir(folder) == [CONTROL_FILE]
    assert os.listdir(folder) == []


async def test_a_controller_that_took_over_keeps_its_file(run: Run, run_dir: Path) -> None:
    other = Control("127.0.0.1:1", 1, "elsewhere", 5.0)
    async with serve_controls(run, run_dir):
        write_control(run_dir, other)
    assert read_control(run_dir) == other


async def test_a_folder_that_cannot_be_written_is_one_line(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"file/run/control.json: cannot be written .* choose another run.dir"):
        async with serve_controls(run, tmp_path / "file" / "run"):
            pass


async def test_status_as_a_person_and_as_a_program_see_it(control: Control, run_dir: Path) -> None:
    code, out, err = await tandem("status", run_dir, "--json")
    assert (code, err) == (0, "") and json.loads(out) == json.loads(json.dumps(asdict(STATUS)))
    code, out, err = await tandem("status", run_dir)
    assert (code, err) == (0, "") and out.startswith("maze: version 12 of 80, generate for 32 s\n")
    assert "killed by SIGKILL" in out and "controller waits for rollout 1 (generation 3)" in out


async def test_scale_and_drain_by_command(control: Control, run: Run, run_dir: Path) -> None:
    assert await tandem("scale", run_dir, "rollout=3", "learner=2") == (
        0,
        "from the next step on: rollout=3, learner=2\n",
        "",
    )
    code, out, _ = await tandem("drain", run_dir, "node-2", "--why", "a new disk")
    assert code == 0 and out.startswith("node-2: the run leaves it")
    code, out, _ = await tandem("drain", run_dir, "hea")  # the head's beginning
    assert code == 0 and out.startswith("head: the run leaves it")
    assert run.asked == [("scale", 3, 2), ("drain", "node-2", "a new disk"), ("drain", "head", "asked for by hand")]
    for name, why in (("node-", "several nodes"), ("node-9", "no node"), ("", "no node")):
        code, _, err = await tandem("drain", run_dir, name)
        assert (code, err) == (2, f"tandem: drain: '{name}' is {why} of this run; there are: head, node-1, node-2\n")


@pytest.mark.parametrize(
    ("numbers", "why"),
    [
        (["rollout=many"], "scale: rollout=many: not a number from 1 on"),
        (["rollout=0"], "scale: rollout=0: not a number from 1 on"),
        (["rollouts=2"], "scale: 'rollouts=2'; write rollout=N, learner=N, or both"),
        (["learner=2", "learner=3"], "scale: learner is given twice"),
        (["learner=9"], "learner=9: the Ray cluster has room for 8"),
    ],
)
async def test_numbers_that_cannot_be_are_one_line(
    control: Control, run: Run, run_dir: Path, numbers: list[str], why: str
) -> None:
    assert await tandem("scale", run_dir, *numbers) == (2, "", f"tandem: {why}\n")
    assert run.asked == []


def dead_pid() -> int:
    """Of a process that was."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    return process.pid


@pytest.fixture
def free_address() -> Iterator[str]:
    """An address where nobody answers: it is taken, and nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


async def test_who_is_not_running_is_told_apart(run_dir: Path, tmp_path: Path, free_address: str) -> None:
    async def told(folder: Path) -> str:
        code, out, err = await tandem("status", folder)
        assert (code, out) == (2, "") and err.count("\n") == 1
        return err

    assert "no such folder" in await told(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    assert "holds no run" in await told(tmp_path / "empty")
    assert "maze is not running; continue it with tandem train" in await told(run_dir)
    write_control(run_dir, Control(free_address, dead_pid(), socket.gethostname(), 1.0))
    assert "ended without a word; continue it with" in await told(run_dir)
    write_control(run_dir, Control(free_address, 1, "elsewhere", 1.0))
    assert f"process 1 of elsewhere at {free_address}, does not answer" in await told(run_dir)
    (run_dir / CONTROL_FILE).write_text('{"address": 5}')
    assert "does not say where a controller listens" in await told(run_dir)


async def test_another_runs_controller_at_the_old_port_is_not_ours(control: Control, run: Run, run_dir: Path) -> None:
    run.told = replace(STATUS, run_id="another")
    code, _, err = await tandem("drain", run_dir, "node-2")
    assert code == 2 and "another run's controller has its old port" in err and run.asked == []


async def test_the_runs_own_secret_opens_its_port(run: Run, run_dir: Path, tmp_path: Path) -> None:
    (secret := tmp_path / "secret").write_text("s" * 40)
    (run_dir / CONFIG_FILE).write_text(f"model: {{path: m}}\nsecurity: {{secret_file: {secret}}}\n")
    ring = open_keyring(SecurityConfig(secret_file=str(secret)), loopback=True)
    async with serve_controls(run, run_dir, door=ring.door(Identity(Role.CONTROLLER))):
        assert (await tandem("status", run_dir, "--json"))[0] == 0
        (run_dir / CONFIG_FILE).write_text("model: {path: m}\n")
        assert (await tandem("status", run_dir, "--json"))[0] == 2


@pytest.mark.parametrize(
    ("seconds", "words"), [(-1, "0 s"), (0.4, "0 s"), (119, "119 s"), (120, "2 min"), (7200, "2.0 h"), (1e5, "27.8 h")]
)
def test_lengths_of_time(seconds: float, words: str) -> None:
    assert ago(seconds) == words


def test_a_table_shows_everybody_and_no_markup_of_theirs() -> None:
    death = replace(STATUS.recoveries[0].death, why="[bold]exit code 3[/bold]")
    many = tuple(replace(STATUS.recoveries[0], death=death) for _ in range(12))
    console = Console(width=200, record=True)
    print_status(console, replace(STATUS, recoveries=many), now=1_000_300.0)
    lines = console.export_text().splitlines()
    assert "nothing has progressed for 12 s" in lines and "deaths: 12, the last 10:" in lines
    assert sum("rollout 1 (generation 2) on node-2: [bold]exit code 3[/bold]" in line for line in lines) == 10
    assert lines.count("    a new one is started on node-3; its place is served again after 12.2 s") == 10
    (member,) = [line.split() for line in lines if line.startswith("rollout 1 ")]
    assert member == ["rollout", "1", "3", "node-2", "serving", "100", "s", "12", "10.0.0.2:4712"]
