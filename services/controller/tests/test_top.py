"""`tandem top` on a real terminal, against a controller's real port that comes and goes."""

from __future__ import annotations

import asyncio
import json
import socket
from dataclasses import replace
from pathlib import Path

import pytest
from control_runs import STEPPED, Run
from terminal import Terminal
from test_control import dead_pid, tandem

from tandem.types import RunStatus, UserError
from tandem_controller.control import Control, serve_controls, write_control
from tandem_controller.past import CONFIG_FILE, FACTS_FILE
from tandem_controller.sessions import FINISHED, STOPPED, Began, session
from tandem_controller.top import ended

BEGAN = Began(1_000_000.0, 12, "tandem train r.yaml", "/work", "0.1.0", 0, {})


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run's folder."""
    folder = tmp_path / "maze"
    folder.mkdir()
    (folder / CONFIG_FILE).write_text("model: {path: m}\n")
    (folder / FACTS_FILE).write_text(json.dumps({"run_id": STEPPED.run_id, "code": "1"}))
    return folder


def top(run_dir: Path, *more: str) -> list[str]:
    return ["-m", "control_command", "top", str(run_dir), "--every", "0.1", *more]


async def test_a_run_is_watched_over_a_restart_to_its_end(run_dir: Path) -> None:
    run = Run(replace(STEPPED, version=12))
    with Terminal(top(run_dir)) as terminal:
        async with serve_controls(run, run_dir):
            await asyncio.to_thread(terminal.until, lambda it: "".join(it.lines).startswith("run  "))
            assert "maze  step 12 of 80" in terminal.lines[0]
            run.told = replace(STEPPED, version=13)
            await asyncio.to_thread(terminal.until, lambda it: "maze  step 13 of 80" in it.lines[0])
            write_control(run_dir, Control("127.0.0.1:1", dead_pid(), socket.gethostname(), 1.0))  # as after a SIGKILL
        await asyncio.to_thread(terminal.until, lambda it: "waiting for its controller" in "\n".join(it.lines))
        assert "maze  step 13 of 80" in terminal.lines[0], "what was last heard stays"
        run.told = replace(STEPPED, version=14)
        async with serve_controls(run, run_dir):
            await asyncio.to_thread(terminal.until, lambda it: "maze  step 14 of 80" in it.lines[0])
            await asyncio.to_thread(terminal.until, lambda it: "waiting for its con" not in "\n".join(it.lines))
        assert not terminal.process.poll(), "it has not said yet how it ended"
        with session(run_dir, BEGAN) as told:
            told.version, told.how = 80, FINISHED
        assert await asyncio.to_thread(terminal.wait) == 0
        last = terminal.raw.decode().rpartition("\x1b[?1049l")[2]
        assert f"maze has finished at step 80 of 80; its report: {run_dir}/report.html" in last.replace("\r\n", "")


async def test_ctrl_c_ends_it_and_gives_the_screen_back(run_dir: Path) -> None:
    async with serve_controls(Run(STEPPED), run_dir):
        with Terminal(top(run_dir)) as terminal:
            await asyncio.to_thread(terminal.until, lambda it: bool(it.lines))
            terminal.signal()
            assert await asyncio.to_thread(terminal.wait) == 0
            assert terminal.raw.count(b"\x1b[?1049h") == terminal.raw.count(b"\x1b[?1049l") == 1
            assert terminal.cursor_shown and b"Traceback" not in terminal.raw


class Looked(Run):
    """It trains from the second look on."""

    def __init__(self) -> None:
        super().__init__(STEPPED)
        self.looks, self.third = 0, asyncio.Event()

    def status(self) -> RunStatus:
        self.looks += 1
        if self.looks == 3:
            self.third.set()
        return self.told if self.looks == 1 else replace(self.told, phase="train")


async def test_without_a_terminal_a_line_for_each_change(run_dir: Path) -> None:
    run = Looked()
    async with serve_controls(run, run_dir):
        watching = asyncio.create_task(tandem(*top(run_dir, "--patience", "0.5")[2:]))
        await asyncio.wait_for(run.third.wait(), 60)
        write_control(run_dir, Control("127.0.0.1:1", dead_pid(), socket.gethostname(), 1.0))
    code, out, err = await watching
    assert out.splitlines()[:2] == [
        "maze: step 12 of 80, generate, solved 100.0%, 10.0 s a step",
        "maze: step 12 of 80, train, solved 100.0%, 10.0 s a step",
    ]
    assert out.splitlines()[2].startswith("waiting for its controller: ") and len(out.splitlines()) == 3
    assert code == 2 and err.count("\n") == 1 and "ended without a word" in err


def test_how_a_run_ended_is_told(run_dir: Path) -> None:
    assert ended(run_dir, STEPPED) == "", "nobody knows yet"
    with session(run_dir, BEGAN) as told:
        told.version, told.how = 40, STOPPED
    assert ended(run_dir, STEPPED) == "maze has been stopped at step 40 of 80; --resume continues it"
    with pytest.raises(UserError), session(run_dir, BEGAN) as told:
        assert ended(run_dir, STEPPED) == "", "another has begun"
        told.version = 41
        raise UserError("the disk is\nfull")
    assert (
        ended(run_dir, STEPPED)
        == "maze has failed at step 41 of 80: UserError: the disk is full; --resume continues it"
    )
