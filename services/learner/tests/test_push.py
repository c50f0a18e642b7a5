"""Every rank sends its shard to all replicas and the checkpoint manager; a failure is told as whose it is."""

from __future__ import annotations

import hashlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from processes import learner, service

from tandem.config import Config
from tandem.rpc import codec
from tandem.rpc.clients import CheckpointClient
from tandem.rpc.gen.rollout.v1 import rollout_pb2, rollout_pb2_grpc
from tandem.rpc.server import serve
from tandem.types import PublishKind, ShardRef, Unavailable, UserError


class Replica(rollout_pb2_grpc.RolloutServiceServicer):
    """Keeps what it is sent, or refuses it."""

    def __init__(self, refuses: bool = False) -> None:
        self.refuses = refuses
        self.shards: list[ShardRef] = []

    async def PutShard(self, request_iterator, context):
        parts = [part async for part in request_iterator]
        if self.refuses:
            raise UserError("no room for a shard; choose another sync.folder")
        ref = codec.decode_shard(parts[0].header.shard)
        data = b"".join(part.chunk for part in parts[1:])
        assert (hashlib.sha256(data).hexdigest(), len(data)) == (ref.sha256, ref.size)
        self.shards.append(ref)
        return rollout_pb2.PutShardResponse(shard=parts[0].header.shard)


@asynccontextmanager
async def at_address(replica: Replica) -> AsyncIterator[str]:
    server = await serve(lambda s: rollout_pb2_grpc.add_RolloutServiceServicer_to_server(replica, s), [])
    yield server.address
    await server.stop(0)


def nobody() -> str:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{taken.getsockname()[1]}"


async def test_all_ranks_send_to_all_and_one_that_is_gone_keeps_nobody_from_it(
    tiny_model: Path, tmp_path: Path
) -> None:
    path = tmp_path / "recipe.json"
    config = Config.model_validate(
        {
            "model": {"path": str(tiny_model)},
            "run": {"dir": str(tmp_path)},
            "learner": {"lora": {"rank": 6}},
            "faults": {"resend_s": 0},
        }
    )
    path.write_text(config.model_dump_json())
    recipe = str(path)
    one, other, full, gone = Replica(), Replica(), Replica(refuses=True), nobody()
    async with (
        service("tandem_checkpoint_manager", recipe) as (_, manager),
        learner(recipe, 2) as pair,
        at_address(one) as first,
        at_address(other) as second,
        at_address(full) as third,
    ):
        sent = await pair.client.push(0, PublishKind.ADAPTER, manager, [first, gone, second, third])
        assert [shard.rank for shard in sent.shards] == [0, 1]
        for replica in (one, other):
            assert sorted(replica.shards, key=lambda shard: shard.rank) == list(sent.shards)
        assert set(sent.missed) == {gone, third}
        assert sent.missed[gone].startswith(f"learner rank 0: rollout at {gone}: UNAVAILABLE: ")
        assert sent.missed[third] == "learner rank 0: no room for a shard; choose another sync.folder"
        status, checkpoints = await pair.client.status(), CheckpointClient(manager)
        published = await checkpoints.publish(
            PublishKind.ADAPTER,
            0,
            world_size=2,
            base_model=status.base_model,
            adapter_config_json=status.adapter_config_json,
        )
        assert published.version == 0
        await checkpoints.close()
        with pytest.raises(Unavailable, match=f"checkpoint manager at {gone}: UNAVAILABLE"):
            await pair.client.push(0, PublishKind.ADAPTER, gone, [first])
