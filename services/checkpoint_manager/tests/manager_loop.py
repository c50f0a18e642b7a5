"""A manager that publishes one version after another until it is killed; runs in a process of its own."""

from __future__ import annotations

import hashlib
import json
import os
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
from safetensors.numpy import save

from tandem.runtime.faults import VARIABLE
from tandem.storage import Placement, Retention, ShardMeta, VersionStore, acquire, write_shard
from tandem.types import PublishKind, ShardRef
from tandem_checkpoint_manager.core import CheckpointManager

ADAPTER, STATE = PublishKind.ADAPTER, PublishKind.STATE
BASE = "a" * 64
ROWS, COLUMNS, RANKS, KEEP = 64, 512, 2, 2
CONFIG = json.dumps({"peft_type": "LORA", "r": ROWS})


def content(kind: PublishKind, version: int) -> dict[str, np.ndarray]:
    """The tensors of a version, which tell it from any other."""
    if kind is STATE:
        return {"exp_avg/w": np.full((ROWS, COLUMNS), version, np.float32)}
    down, up = np.full((ROWS, COLUMNS), version, np.float32), np.full((COLUMNS, ROWS), -version, np.float32)
    return {"w.lora_A.weight": down, "w.lora_B.weight": up}


def shards(kind: PublishKind, version: int) -> list[tuple[ShardRef, bytes]]:
    """What the ranks send of a version."""
    made = []
    for rank in range(RANKS):
        parts, places = {}, {}
        for name, whole in content(kind, version).items():
            step = len(whole) // RANKS
            parts[name] = whole[rank * step : (rank + 1) * step]
            places[name] = Placement(whole.shape, (rank * step, 0))
        data = save(parts, ShardMeta(kind, version, rank, RANKS, BASE, places).to_metadata())
        made.append((ShardRef(kind, version, rank, RANKS, hashlib.sha256(data).hexdigest(), len(data)), data))
    return made


def publish(manager: CheckpointManager, url: str, kind: PublishKind, version: int) -> str:
    """Publish a version, of which one rank sends its shard and the other writes it; the sha256 of its manifest."""
    (sent, data), (written, more) = shards(kind, version)
    manager.put(sent, [data[:50_000], data[50_000:]])
    write_shard(url, written, [more])
    manager.take(written)
    config = CONFIG if kind is ADAPTER else ""
    return manager.publish(kind, version, world_size=RANKS, base_model=BASE, adapter_config_json=config).sha256


def run(url: str, told: Path, fault: str, ready: Connection) -> None:
    """Say so, take the store from the one before, and publish until killed. Each version that was answered for is a
    line of `told`."""
    ready.send("ready")
    os.environ[VARIABLE] = fault
    lease = acquire(url)
    manager = CheckpointManager(url, Retention(KEEP), fence=lease.check)
    newest = max((max(VersionStore(url).versions(kind), default=0) for kind in PublishKind), default=0)
    with told.open("a") as file:
        for version in range(newest + 1, newest + 1_000_000):
            for kind in (ADAPTER, STATE)[: 1 + (version % 2 == 0)]:
                sha256 = publish(manager, url, kind, version)
                file.write(json.dumps([kind, version, sha256]) + "\n")
                file.flush()
