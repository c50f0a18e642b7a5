"""Disks that are full or read-only, and clocks that go backwards: one line, and the version before is served."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from tandem.storage import Retention, latest, read_adapter, write_shard
from tandem.types import AdapterRef, PublishKind, UserError
from tandem_checkpoint_manager.core import CheckpointManager

ADAPTER = PublishKind.ADAPTER
BASE = "a" * 64


def adapter(version: int, rows: int) -> dict[str, np.ndarray]:
    """Of LoRA rank 4; 64 kB for 4096 rows."""
    return {
        "w.lora_A.weight": np.full((4, 8), version, np.float32),
        "w.lora_B.weight": np.full((rows, 4), version, np.float32),
    }


def put(manager: CheckpointManager, shards) -> None:
    for sent in shards:
        manager.put(sent.ref, [sent.data[at : at + 65536] for at in range(0, len(sent.data), 65536)])


def publish(manager: CheckpointManager, version: int, world_size: int = 1) -> AdapterRef:
    config = '{"peft_type": "LORA", "r": 4}'
    return manager.publish(ADAPTER, version, world_size=world_size, base_model=BASE, adapter_config_json=config)


@contextmanager
def refused(manager: CheckpointManager, message: str) -> Iterator[None]:
    served = manager.get(ADAPTER).ref
    with pytest.raises(UserError, match=message) as caught:
        yield
    assert "\n" not in str(caught.value)
    assert latest(manager.store.blobs.url).ref == served
    assert read_adapter(served).is_dir()  # every hash of it


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of its own, of 2 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", folder], capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"NOT TESTED: a full and a read-only disk; mounting one needs root here ({made.stderr.strip()})")
    yield folder
    subprocess.run(["umount", folder], check=True)


def remount(disk: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", disk], check=True)


def test_a_full_disk(disk: Path, make_shards) -> None:
    url = str(disk / "store")
    manager = CheckpointManager(url, Retention(3))
    put(manager, make_shards(adapter(1, 64), 1, 1))
    publish(manager, 1)
    full = "No space left on device; free space there or choose another checkpoint.url"
    large = make_shards(adapter(2, 2**18), 1, 2)  # 4 MiB
    with refused(manager, f"^spooling .*/incoming-.*: {full}"):
        put(manager, large)
    with refused(manager, f"^writing .*/adapter-v00000002-rank00000-.*: {full}"):
        write_shard(url, large[0].ref, [large[0].data])
    assert list(manager.staging.folder.iterdir()) == []
    fits = make_shards(adapter(3, 80_000), 2, 3)  # 1.3 MB: room to wait, none to be joined
    put(manager, fits)
    with refused(manager, f"^writing .*/adapter_model.safetensors: {full}"):
        publish(manager, 3, 2)
    remount(disk, "size=16m")
    assert publish(manager, 3, 2) == latest(url).ref  # once there is room, the same request succeeds
    manager.close()


def test_a_disk_that_turns_read_only(disk: Path, make_shards) -> None:
    url = str(disk / "store")
    manager = CheckpointManager(url, Retention(3))
    for version in (1, 2):
        put(manager, make_shards(adapter(version, 64), 1, version))
        if version == 1:
            publish(manager, 1)
    remount(disk, "ro")
    reason = "Read-only file system; it is mounted read-only; choose another checkpoint.url"
    with refused(manager, f"^writing .*: {reason}"):
        publish(manager, 2)
    (late,) = make_shards(adapter(3, 64), 1, 3)
    with refused(manager, f"^spooling to .*: {reason}"):
        put(manager, [late])
    with refused(manager, f"^writing .*: {reason}"):
        write_shard(url, late.ref, [late.data])
    with refused(manager, f"^writing .*/probe.*: {reason}"):
        CheckpointManager(url, Retention(3))
    remount(disk, "rw")
    assert publish(manager, 2) == latest(url).ref
    manager.close()


def test_a_clock_that_goes_backwards(tmp_path: Path, make_shards, monkeypatch: pytest.MonkeyPatch) -> None:
    url = str(tmp_path / "store")
    manager = CheckpointManager(url, Retention(2))
    for version in (1, 2):
        put(manager, make_shards(adapter(version, 64), 1, version))
        publish(manager, version)
    manager.close()
    century = time.time() + 100 * 365 * 86400
    for path in Path(url).rglob("*"):
        os.utime(path, (century, century))  # all that is there was written in the future
    monkeypatch.setattr(time, "time", lambda: 0.0)
    again = CheckpointManager(url, Retention(2))
    assert again.get(ADAPTER).ref.version == 2
    put(again, make_shards(adapter(3, 64), 1, 3))
    ref = publish(again, 3)
    assert latest(url).ref == ref and read_adapter(ref).is_dir()
    assert [item.ref.version for item in again.list(ADAPTER)] == [2, 3]  # the oldest by version went
    again.close()
    assert CheckpointManager(url, Retention(2)).get(ADAPTER).ref == ref
