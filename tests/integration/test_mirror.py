"""The mirror at work in a run: what is durable there when the run ends, and how a run goes on from it alone."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tandem.config import Config
from tandem.rpc.clients import CheckpointClient
from tandem.storage import VersionStore, latest
from tandem.types import PublishKind
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
        await mirror_caught_up(client)
        assert expected in caplog.text and ("mirror" in caplog.text) == bool(also_to)
        if also_to == str(tmp_path / "mirror"):
            assert latest(also_to).ref.sha256 == latest(str(tmp_path / "store")).ref.sha256
        await client.close()
        await service.stop()
