"""Two managers on one URL, as processes: one writes, and what it publishes stays whole."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tandem.rpc.clients import CheckpointClient
from tandem.storage import VersionStore
from tandem.types import PublishKind, UserError

ADAPTER = PublishKind.ADAPTER
BASE = "a" * 64
CONFIG = json.dumps({"peft_type": "LORA", "r": 5, "lora_alpha": 8, "target_modules": ["q_proj"]})


@pytest.fixture(params=["local", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return request.getfixturevalue("s3_url") if request.param == "s3" else str(tmp_path / "store")


@contextmanager
def manager(tmp_path: Path, url: str, lease_s: float = 1e6) -> Iterator[subprocess.Popen[str]]:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("model: {path: m}\n")
    command = [sys.executable, "-m", "tandem_checkpoint_manager", str(recipe), f"checkpoint.url={url}"]
    process = subprocess.Popen(
        [*command, f"checkpoint.lease_s={lease_s}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=dict(os.environ),
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.kill()
        process.communicate()


def client_of(process: subprocess.Popen[str]) -> CheckpointClient:
    assert process.stdout
    return CheckpointClient(json.loads(process.stdout.readline())["address"])


async def publish(client: CheckpointClient, version: int, shards) -> None:
    for sent in shards:
        await client.put_shard(sent.ref, [sent.data])
    await client.publish(ADAPTER, version, world_size=len(shards), base_model=BASE, adapter_config_json=CONFIG)


def whole(url: str) -> list[int]:
    """The published versions, every file of them verified; the last is the latest."""
    store = VersionStore(url)
    found = store.published(ADAPTER)
    for item in found:
        store.verify(item)
    assert store.latest(ADAPTER) == found[-1]
    return [item.ref.version for item in found]


async def test_a_manager_that_was_killed_is_followed_at_once(tmp_path, url, make_tensors, make_shards) -> None:
    """Not after the lease's 11 days."""
    with manager(tmp_path, url) as first:
        client = client_of(first)
        await publish(client, 1, make_shards(make_tensors(1), 2, 1))
        await client.close()
        first.kill()
        first.wait()
    with manager(tmp_path, url) as second:
        successor = client_of(second)
        await publish(successor, 2, make_shards(make_tensors(2), 1, 2))
        await successor.close()
    assert whole(url) == [1, 2]


async def test_a_second_manager_is_refused_in_one_line(tmp_path, url) -> None:
    with manager(tmp_path, url, 2) as first:
        await client_of(first).close()
        with manager(tmp_path, url, 2) as second:
            out, err = second.communicate(timeout=60)
        assert second.returncode == 2 and out == ""
        last = err.splitlines()[-1]
        assert f"pid {first.pid}, since 20" in last and "writes it; stop that manager" in last
        assert "Traceback" not in err and first.poll() is None


async def test_a_manager_that_was_stopped_and_wakes_after_the_takeover_is_fenced(
    tmp_path, url, make_tensors, make_shards
) -> None:
    with manager(tmp_path, url, 2) as first:
        client = client_of(first)
        await publish(client, 1, make_shards(make_tensors(1), 2, 1))
        for sent in make_shards(make_tensors(3), 1, 2):
            await client.put_shard(sent.ref, [sent.data])
        first.send_signal(signal.SIGSTOP)
        with manager(tmp_path, url, 2) as second:
            successor = client_of(second)
            await publish(successor, 2, make_shards(make_tensors(2), 1, 2))
            first.send_signal(signal.SIGCONT)
            with pytest.raises(UserError):
                await client.publish(ADAPTER, 3, world_size=1, base_model=BASE, adapter_config_json=CONFIG)
            with pytest.raises(UserError, match=f"taken over by host .*pid {second.pid}.*writes nothing more there"):
                await client.delete(ADAPTER, 1)
            assert whole(url) == [1, 2]
            await publish(successor, 3, make_shards(make_tensors(4), 1, 3))  # its spool is its own
            first.terminate()
            assert first.wait(30) == 0
            await publish(successor, 4, make_shards(make_tensors(5), 1, 4))
            await successor.close()
        await client.close()
    assert whole(url) == [2, 3, 4]
