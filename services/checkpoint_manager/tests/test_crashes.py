"""A manager is killed as by kill -9, at every fault point and at random instants: what it leaves is whole.

The processes are forked from a server that has imported everything, so that hundreds of them are cheap.
"""

from __future__ import annotations

import json
import multiprocessing
import random
import signal
import time
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np
import pytest
from manager_loop import ADAPTER, KEEP, STATE, content, publish, run
from safetensors.numpy import load_file

from tandem.runtime.faults import MANAGER
from tandem.storage import TENSOR_FILE, Retention, VersionStore, acquire, latest, read_adapter
from tandem.types import PublishKind
from tandem_checkpoint_manager.core import CheckpointManager

DEADLINE_S = 120.0
INSTANTS = 200
LIVES = 4  # what a manager has published by the latest of those instants, about

Told = dict[PublishKind, dict[int, str]]


@pytest.fixture(scope="module")
def forked() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["numpy", "safetensors.numpy", "tandem_checkpoint_manager.core"])
    return context


class Store:
    """A store, and what its managers have answered for."""

    def __init__(self, folder: Path, forked: ForkServerContext) -> None:
        self.url = str(folder / "store")
        self.told = folder / "told"
        self.forked = forked

    def start(self, fault: str = "") -> BaseProcess:
        ready, tell = self.forked.Pipe(duplex=False)
        process = self.forked.Process(target=run, args=(self.url, self.told, fault, tell), daemon=True)
        process.start()
        tell.close()
        assert ready.poll(DEADLINE_S) and ready.recv() == "ready"
        ready.close()
        return process

    def answered(self) -> Told:
        found: Told = {ADAPTER: {}, STATE: {}}
        for line in self.told.read_text().splitlines() if self.told.exists() else ():
            kind, version, sha256 = json.loads(line)
            found[PublishKind(kind)][version] = sha256
        return found

    def check_whole(self) -> None:
        """As a reader finds it that comes before any manager has started again."""
        store, answered = VersionStore(self.url), self.answered()
        for kind, told in answered.items():
            found = {item.ref.version: item.ref for item in store.published(kind)}
            for version, ref in found.items():
                joined = load_file(read_adapter(ref) / TENSOR_FILE[kind])  # every hash is checked
                expected = content(kind, version)
                assert joined.keys() == expected.keys()
                assert all(np.array_equal(joined[name], expected[name]) for name in expected)
                assert told.get(version, ref.sha256) == ref.sha256
            # what was answered for is there, unless `KEEP` newer ones are
            oldest = sorted(found)[-KEEP:][0] if found else 0
            assert all(version in found or version < oldest for version in told)
            if told:
                pointed = latest(self.url, kind).ref
                assert pointed == found[pointed.version] and pointed.version >= max(told)

    def check_restart(self) -> None:
        """A manager that starts again sweeps what is left, serves the newest, and publishes on."""
        lease = acquire(self.url)
        manager = CheckpointManager(self.url, Retention(KEEP), fence=lease.check)
        root = Path(self.url)
        assert {path.name for path in root.iterdir()} <= {".staging", "adapters", "lease", "states", "store.json"}
        assert [path for path in (root / ".staging").rglob("*") if path.is_file()] == []
        for kind in (ADAPTER, STATE):
            versions = manager.store.versions(kind)
            assert [item.ref.version for item in manager.list(kind)] == list(versions)
            if versions:
                assert manager.get(kind).ref.version == versions[-1]
        version = max([*manager.store.versions(ADAPTER), *manager.store.versions(STATE), 0]) + 1
        sha256 = publish(manager, self.url, ADAPTER, version)
        assert latest(self.url).ref.sha256 == sha256
        manager.close()
        lease.release()


@pytest.fixture
def store(tmp_path: Path, forked: ForkServerContext) -> Store:
    return Store(tmp_path, forked)


@pytest.mark.parametrize("nth", [1, 4])
def test_at_every_fault_point(store: Store, nth: int) -> None:
    process = store.start("manager/prune/started@8")  # enough is there to be removed
    process.join(DEADLINE_S)
    assert process.exitcode == -signal.SIGKILL
    for point in MANAGER:
        if nth > 1 and "/recover/" in point:
            continue  # is reached once in a start
        process = store.start(f"{point}@{nth}")
        process.join(DEADLINE_S)
        assert process.exitcode == -signal.SIGKILL, point
        store.check_whole()
    store.check_restart()


def test_at_random_instants(store: Store) -> None:
    instants = random.Random(0)
    process, began = store.start(), time.monotonic()
    while sum(map(len, store.answered().values())) < LIVES:
        process.join(0.01)
        assert process.exitcode is None and time.monotonic() - began < DEADLINE_S
    longest = time.monotonic() - began  # however busy the machine is
    process.kill()
    for _ in range(INSTANTS):
        process.join(DEADLINE_S)
        assert process.exitcode == -signal.SIGKILL
        store.check_whole()
        process = store.start()
        process.join(instants.uniform(0, longest))
        process.kill()
    process.join(DEADLINE_S)
    store.check_whole()
    store.check_restart()
