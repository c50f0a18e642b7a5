"""A hosted service's own process: how it starts, and how each kind of its end is told."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tandem.cluster.ends import CRASH, in_words
from tandem.cluster.process import ServiceProcess
from tandem.config import Config
from tandem.rpc.door import Door
from tandem.rpc.hosted import Order
from tandem.types import Identity, Role

CGROUP = Path("/sys/fs/cgroup/memory")  # of version 1
SERVICE = """
import asyncio, os, resource, threading
from types import SimpleNamespace
from tandem.types import UserError

async def start(config, *, host, door, what):
    loop = asyncio.get_running_loop()
    ended = loop.create_future()
    if what == "refuse": raise UserError("no such model")
    if what == "bug": raise ValueError("boom")
    if what == "alone": loop.call_soon(ended.set_exception, UserError("rank 0 is gone"))
    if what == "exit 3": threading.Timer(0.1, os._exit, [3]).start()
    if what == "memory":
        resource.setrlimit(resource.RLIMIT_AS, (2**32, 2**32))
        bytearray(2**33)
    if what == "hog": threading.Timer(0.1, lambda: bytearray(os.urandom(2**20) * 2**10)).start()
    async def stop(): print("stopped", flush=True)
    print("up as", door.me, flush=True)
    return SimpleNamespace(address="127.0.0.1:1", stop=stop, ended=ended)
"""


@pytest.fixture
def hosted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ServiceProcess]:
    """A small service in a process of its own, which does what it is told."""
    (tmp_path / "small_service.py").write_text(SERVICE)
    monkeypatch.syspath_prepend(str(tmp_path))
    config = Config.model_validate({"model": {"path": str(tmp_path)}})

    def start(what: str) -> ServiceProcess:
        door = Door(Identity(Role.ROLLOUT, 0, 1))
        order = Order("small_service", config.model_dump_json(), "127.0.0.1", door, {"what": what}, parent=os.getpid())
        return ServiceProcess(order, tmp_path / "rollout-0-g1.log")

    return start


@pytest.mark.parametrize(
    ("number", "why"), [(signal.SIGKILL, "killed by SIGKILL"), (signal.SIGABRT, "killed by SIGABRT")]
)
async def test_a_signal_is_named(hosted, number: signal.Signals, why: str) -> None:
    process = hosted("serve")
    assert await process.up()
    assert process.said == {"address": "127.0.0.1:1", "metrics": ""}
    os.kill(process.pid, number)
    end = await process.ended()
    assert end.why == why
    if number == signal.SIGABRT:
        assert end.last_lines[0].startswith(CRASH), "faulthandler's first lines say most"
    else:
        assert end.last_lines[-1] == "up as rollout 0 (generation 1)"


@pytest.mark.parametrize(
    ("what", "why"),
    [
        ("exit 3", "exit code 3"),
        ("alone", "rank 0 is gone"),
    ],
)
async def test_an_end_of_its_own_is_told(hosted, what: str, why: str) -> None:
    process = hosted(what)
    assert await process.up()
    assert (await process.ended()).why == why


@pytest.mark.parametrize(
    ("what", "why"),
    [
        ("refuse", "no such model"),
        ("bug", "exit code 1 (ValueError: boom)"),
        ("memory", "exit code 1 (MemoryError)"),
    ],
)
async def test_a_start_that_fails_says_why(hosted, what: str, why: str) -> None:
    process = hosted(what)
    assert not await process.up()
    assert (await process.ended()).why == why
    assert process.said.get("error") == ("UserError" if what == "refuse" else None)


async def test_it_is_stopped_in_order_or_by_force(hosted) -> None:
    process = hosted("serve")
    assert await process.up()
    await process.stop(patience_s=30)
    end = await process.ended()
    assert (end.why, end.last_lines[-1]) == ("ended in order (exit code 0)", "stopped")

    process = hosted("serve")
    assert await process.up()
    os.kill(process.pid, signal.SIGSTOP)
    await process.stop(patience_s=0.1)
    assert (await process.ended()).why == "killed by SIGKILL"


def test_out_of_memory_is_told_by_what_the_kernel_counted() -> None:
    before = {"/sys/fs/cgroup/memory.events": 1, "/proc/vmstat": 4}
    after = {"/sys/fs/cgroup/memory.events": 2, "/proc/vmstat": 5}
    assert in_words(-9, (), before, before) == "killed by SIGKILL"
    assert in_words(-9, (), before, after).startswith("out of memory: killed by the kernel (SIGKILL")
    assert in_words(-11, (), before, after) == "killed by SIGSEGV"


@pytest.fixture
def small_group() -> Iterator[Path]:
    """A memory control group of 200 MB, with this process in it."""
    group = CGROUP / f"tandem-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as problem:
        pytest.skip(f"no memory control group can be made here: {problem}")
    home = next(line for line in Path("/proc/self/cgroup").read_text().splitlines() if ":memory:" in line)
    try:
        (group / "memory.limit_in_bytes").write_text(str(200 * 2**20))
        (group / "cgroup.procs").write_text(str(os.getpid()))
        yield group
    finally:
        (CGROUP / home.split(":")[2].strip("/") / "cgroup.procs").write_text(str(os.getpid()))
        group.rmdir()


async def test_a_kill_for_want_of_memory_is_told(hosted, small_group: Path) -> None:
    process = hosted("hog")  # born in the group, whose other process, this one, holds nothing there
    (CGROUP / "cgroup.procs").write_text(str(os.getpid()))
    assert await process.up()
    end = await process.ended()
    assert end.why.startswith("out of memory: killed by the kernel (SIGKILL")
    assert str(small_group) in end.why
