"""What starts together waits together; what is ended takes its children along and meets nobody else's process."""

import os
import signal
from pathlib import Path
from threading import Barrier

import psutil
import pytest

from tandem.cluster.deploy import side_by_side
from tandem.cluster.process import ServiceProcess
from tandem.config import Config
from tandem.rpc.door import Door
from tandem.rpc.hosted import Order
from tandem.runtime import poll
from tandem.types import Identity, Role

PARENT = """
import subprocess
from types import SimpleNamespace

async def start(config, *, host, door):
    child = subprocess.Popen(["sleep", "600"])
    async def stop(): pass
    return SimpleNamespace(address=f"127.0.0.1:{child.pid}", stop=stop)
"""


def test_however_many_ranks_may_wait_for_one_another() -> None:
    meeting = Barrier(40, timeout=30)
    assert sorted(side_by_side([meeting.wait] * 40)) == list(range(40))


async def test_one_that_has_just_died_is_stopped_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "service_with_child.py").write_text(PARENT)
    monkeypatch.syspath_prepend(str(tmp_path))
    config = Config.model_validate({"model": {"path": str(tmp_path)}})
    door = Door(Identity(Role.ROLLOUT, 0, 1))
    order = Order("service_with_child", config.model_dump_json(), "127.0.0.1", door, parent=os.getpid())
    process = ServiceProcess(order, tmp_path / "rollout-0-g1.log")
    assert await process.up()
    child = psutil.Process(int(process.said["address"].rpartition(":")[2]))
    os.kill(process.pid, signal.SIGKILL)
    # It is reaped in a thread, and this thread's loop does not know yet.
    assert poll(lambda: True if not psutil.pid_exists(process.pid) else None, every_s=0.01, for_s=30)
    await process.stop(patience_s=5)
    child.wait(30)
    assert (await process.ended()).why == "killed by SIGKILL"
