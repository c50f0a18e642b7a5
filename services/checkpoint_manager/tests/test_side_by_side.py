"""A training state of gigabytes, joined beside the steps that follow, holds up neither adapters nor scores."""

from __future__ import annotations

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tandem.rpc.clients import CheckpointClient
from tandem.rpc.server import serve
from tandem.storage import Retention, read_scores
from tandem.types import DataCorrupt, PublishKind
from tandem_checkpoint_manager.core import CheckpointManager
from tandem_checkpoint_manager.servicer import SERVICE, CheckpointServicer

ADAPTER, STATE = PublishKind.ADAPTER, PublishKind.STATE
BASE = "a" * 64
CONFIG = json.dumps({"peft_type": "LORA", "r": 5, "lora_alpha": 8, "target_modules": ["q_proj"]})
DEADLINE_S = 30


@pytest.mark.parametrize("held", [STATE, ADAPTER])
def test_kinds_are_published_side_by_side(make_tensors, make_shards, tmp_path: Path, held: PublishKind) -> None:
    """The store's fence, asked before every change of it, holds one kind's publication half way."""
    begun, go_on = threading.Event(), threading.Event()

    def fence() -> None:
        if threading.current_thread().name.startswith("held"):
            begun.set()
            assert go_on.wait(DEADLINE_S)

    manager = CheckpointManager(str(tmp_path / "store"), Retention(3), fence=fence)

    def publish(kind: PublishKind, version: int) -> int:
        for shard in make_shards(make_tensors(version), 2, version, kind=kind):
            manager.put(shard.ref, [shard.data])
        config = CONFIG if kind is ADAPTER else ""
        return manager.publish(kind, version, world_size=2, base_model=BASE, adapter_config_json=config).version

    publish(ADAPTER, 1)
    other = ADAPTER if held is STATE else STATE
    with ThreadPoolExecutor(1, "held") as slow, ThreadPoolExecutor(1, "free") as free:
        try:
            publishing = slow.submit(publish, held, 2)
            assert begun.wait(DEADLINE_S)
            free.submit(manager.score, ADAPTER, 1, {"solve_rate": 0.5}).result(DEADLINE_S)
            for version in range(2, 7):
                assert free.submit(publish, other, version).result(DEADLINE_S) == version
            free.submit(manager.delete, other, 5).result(DEADLINE_S)
            assert not publishing.done()
        finally:
            go_on.set()
        assert publishing.result(DEADLINE_S) == 2
    assert read_scores(manager.store, ADAPTER, 1) == ({"solve_rate": 0.5} if held is ADAPTER else {})
    assert manager.get(held).manifest.version == 2 and manager.get(other).manifest.version == 6
    manager.close()


def test_an_adapter_does_not_read_what_a_state_says_of_its_run(make_tensors, make_shards, tmp_path: Path) -> None:
    """That is long after a long run. Found out here by damaging it."""
    manager = CheckpointManager(str(tmp_path / "store"), Retention(3))
    for kind, version in ((STATE, 1), (ADAPTER, 1), (ADAPTER, 2)):
        if version == 2:
            (tmp_path / "store/states/v00000001/manifest.json").write_text("{")
        for shard in make_shards(make_tensors(version), 1, version, kind=kind):
            manager.put(shard.ref, [shard.data])
        config = CONFIG if kind is ADAPTER else ""
        assert manager.publish(kind, version, world_size=1, base_model=BASE, adapter_config_json=config)
    with pytest.raises(DataCorrupt):
        manager.get(STATE)
    manager.close()


async def test_the_service_answers_while_a_shard_waits_for_the_spool(make_tensors, make_shards, tmp_path: Path) -> None:
    """The spool is busy, as while shards are cleared from a slow disk."""
    url = str(tmp_path / "store")
    manager = CheckpointManager(url, Retention(3))
    server = await serve(CheckpointServicer(manager).register, [SERVICE])
    client, given_up = CheckpointClient(server.address), threading.Event()
    [shard] = make_shards(make_tensors(), 1)
    busy = manager.staging._lock
    busy.acquire()

    def give_up() -> None:
        given_up.set()
        busy.release()

    guard = threading.Timer(DEADLINE_S, give_up)
    guard.start()
    putting = asyncio.create_task(client.put_shard(shard.ref, [shard.data]))
    for _ in range(50):
        assert (await client.status(2 * DEADLINE_S)).url == url
    assert not given_up.is_set() and not putting.done()
    guard.cancel()
    busy.release()
    assert await putting == shard.ref
    await client.close()
    await server.stop(0)
    manager.close()
