"""One rank's shard on its way: a replica that is slow, a store's folder, and a shard that is given up half way."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from processes import deaf_peer

from tandem.rpc.gen.checkpoint.v1 import checkpoint_pb2, checkpoint_pb2_grpc
from tandem.rpc.server import serve
from tandem.runtime import deadline
from tandem.storage import CHUNK_BYTES, spool_folder
from tandem.types import PublishKind, ShardRef
from tandem_learner.host_copy import ShardFile
from tandem_learner.leader import Leader
from tandem_learner.orders import Destinations
from tandem_learner.rank import Rank
from tandem_learner.sending import write_shared

WITHIN_S = 30.0


class Manager(checkpoint_pb2_grpc.CheckpointServiceServicer):
    """Takes any shard."""

    async def PutShard(self, request_iterator, context):
        parts = [part async for part in request_iterator]
        return checkpoint_pb2.PutShardResponse(shard=parts[0].header.shard)


async def test_a_slow_replica_is_given_up_before_rank_0_gives_up_the_export(make_core: Any) -> None:
    core = make_core(learner={"collective_timeout_s": 2.0})
    server = await serve(lambda s: checkpoint_pb2_grpc.add_CheckpointServiceServicer_to_server(Manager(), s), [])
    with ThreadPoolExecutor(1) as thread:
        leader = Leader(Rank(core, thread), [], core.config.learner.collective_timeout_s)
        async with deaf_peer() as (slow, _), deadline(WITHIN_S, "export"):
            to = Destinations(server.address, (slow,))
            sent = await leader.export("x", core.version, PublishKind.ADAPTER, to)
        assert len(sent.shards) == 1 and set(sent.missed) == {slow}
        assert sent.missed[slow].startswith(f"learner rank 0: rollout at {slow}: ")
        await leader.stop()
    await server.stop(0)


class Held(ShardFile):
    """A shard whose file is written so slowly that training overtakes it."""

    begun, go_on = threading.Event(), threading.Event()

    def chunks(self) -> Iterator[bytes]:
        for chunk in super().chunks():
            yield chunk
            self.begun.set()
            assert self.go_on.wait(WITHIN_S)


async def test_a_shard_given_up_gets_no_name_and_its_memory_is_free_once_that_is_told(tmp_path: Path) -> None:
    memory = torch.zeros(3 * CHUNK_BYTES, dtype=torch.uint8)
    digest = hashlib.sha256(b"head" + bytes(memory.numpy())).hexdigest()
    ref = ShardRef(PublishKind.STATE, 1, 0, 1, digest, 4 + len(memory))
    file = Held(ref, b"head", memoryview(memory.numpy()).toreadonly())  # type: ignore[arg-type]
    folder = spool_folder(str(tmp_path))
    folder.mkdir(parents=True)
    writing = asyncio.create_task(write_shared(file, str(tmp_path)))
    assert await asyncio.to_thread(file.begun.wait, WITHIN_S)
    writing.cancel()
    await asyncio.sleep(0)
    file.go_on.set()
    await asyncio.gather(writing, return_exceptions=True)
    assert writing.cancelled()
    memory.fill_(1)  # the next snapshot
    await asyncio.get_running_loop().shutdown_default_executor()
    assert list(folder.iterdir()) == []
    file.begun.clear()
