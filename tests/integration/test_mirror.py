"""The mirror at work in a run: what is durable there when the run ends, and how a run goes on from it alone."""

from __future__ import annotations

import asyncio
import io
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from rich.console import Console

from tandem.config import Config
from tandem.rpc.clients import CheckpointClient
from tandem.runtime import deadline, until
from tandem.storage import VersionStore, latest
from tandem.types import CheckpointStatus, MirrorStatus, PublishKind
from tandem_checkpoint_manager.main import start
from tandem_controller.mirrored import mirror_caught_up

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "deploy/recipes/maze2d-cpu.yaml"
SMALL = ["learner.lr_final=1", "sft.batch=8", "checkpoint.state_every=1", f"model.path={ROOT}/models/tiny-qwen3vl"]
ADAPTER, STATE = PublishKind.ADAPTER, PublishKind.STATE


def whole(url: str) -> dict[PublishKind, list[int]]:
    store = VersionStore(url)
    for kind in (ADAPTER, STATE):
        for found in store.published(kind):
            store.verify(found)
    return {kind: [found.ref.version for found in store.published(kind)] for kind in (ADAPTER, STATE)}


@pytest.mark.ray
@pytest.mark.slow
def test_a_run_whose_disk_is_lost_goes_on_from_its_mirror(tmp_path: Path, s3_url: str) -> None:
    def sft(steps: int, *more: str) -> str:
        where = [f"run.dir={tmp_path}", "run.name=r", f"run.steps={steps}"]
        command = [sys.executable, "-m", "tandem.cli", "sft", str(RECIPE), *SMALL, *where, *more]
        done = subprocess.run(command, capture_output=True, text=True, timeout=250, cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    said = sft(2, f"checkpoint.also_to={s3_url}")
    assert f"durable at {s3_url}" in said and "adapter v2" in said and "state v2" in said
    assert whole(s3_url) == {ADAPTER: [1, 2], STATE: [1, 2]}
    shutil.rmtree(tmp_path / "r" / "checkpoints")
    sft(3, f"checkpoint.url={s3_url}", "--resume")
    assert whole(s3_url) == {ADAPTER: [1, 2, 3], STATE: [1, 2, 3]}


async def test_the_end_of_a_run_waits_for_the_mirror_but_not_for_one_that_is_down(tmp_path: Path, caplog) -> None:
    files = {"adapter_config.json": [b"{}"], "adapter_model.safetensors": [bytes(2**20)] * 64}
    VersionStore(str(tmp_path / "store")).commit(ADAPTER, 7, "b" * 64, files, {})
    for also_to, expected in (
        (str(tmp_path / "mirror"), f"durable at {tmp_path}/mirror: adapter v7"),
        ("/dev/null/x", "1 versions are not at /dev/null/x: writing /dev/null/x/lease/probe-"),
        ("", ""),
    ):
        caplog.clear()
        caplog.set_level("INFO")
        checkpoint = {"url": str(tmp_path / "store"), "also_to": also_to}
        service = await start(Config.model_validate({"model": {"path": "m"}, "checkpoint": checkpoint}))
        client = CheckpointClient(service.address)
        await mirror_caught_up(client, Console(), asyncio.Event())
        assert expected in caplog.text and ("mirror" in caplog.text) == bool(also_to)
        if also_to == str(tmp_path / "mirror"):
            assert latest(also_to).ref.sha256 == latest(str(tmp_path / "store")).ref.sha256
        await client.close()
        await service.stop()


async def test_a_run_that_is_told_to_stop_waits_for_no_mirror(tmp_path: Path, caplog) -> None:
    """The first look says that there is something to wait for, and on it goes without."""
    checkpoint = {"url": str(tmp_path / "store")}
    service = await start(Config.model_validate({"model": {"path": "m"}, "checkpoint": checkpoint}))
    stop, said = asyncio.Event(), io.StringIO()

    class Behind(CheckpointClient):
        """A mirror so slow that it never gets anywhere."""

        async def status(self, timeout_s: float = 30.0) -> CheckpointStatus:
            mirror = MirrorStatus("s3://far/away", {}, 3, 0, 0.0, "")
            return replace(await super().status(timeout_s), mirror=mirror)

    behind = Behind(service.address)
    waiting = asyncio.create_task(mirror_caught_up(behind, Console(file=said), stop, wait_s=600))
    assert await until(partial(_has, said, "waiting for 3 versions"), every_s=0.05, for_s=30)
    assert not waiting.done()
    stop.set()
    async with deadline(30, "the end of the wait"):
        await waiting
        await mirror_caught_up(behind, Console(file=said), stop, wait_s=600)
    assert caplog.text.count("3 versions are not at s3://far/away: not waited for; --resume copies them") == 2
    assert said.getvalue().count("waiting") == 1
    await behind.close()
    await service.stop()


async def _has(said: io.StringIO, text: str) -> bool | None:
    return text in said.getvalue() or None
