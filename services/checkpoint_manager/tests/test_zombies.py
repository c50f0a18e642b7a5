"""A learner or controller that was replaced cannot put or publish anything any more, nor who means another process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import grpc
import pytest

from tandem.config import Config
from tandem.rpc import codec
from tandem.rpc.clients import CheckpointClient
from tandem.rpc.door import Door
from tandem.rpc.gen.checkpoint.v1 import checkpoint_pb2 as pb
from tandem.types import Identity, NotFound, PublishKind, Role, ShardRef, StaleRequest, UserError
from tandem_checkpoint_manager.main import start

ADAPTER = PublishKind.ADAPTER
ME = Identity(Role.CHECKPOINT_MANAGER, 0, 3)
Connect = Callable[..., CheckpointClient]


@pytest.fixture
async def connect(tmp_path: Path) -> AsyncIterator[Connect]:
    """Clients of one manager: who calls, and whom it means."""
    config = Config.model_validate({"model": {"path": "m"}, "checkpoint": {"url": str(tmp_path / "store")}})
    service = await start(config, door=Door(ME))
    async with AsyncExitStack() as ends:

        def make(role: Role, generation: int, index: int = 0, callee: Identity | None = ME) -> CheckpointClient:
            client = CheckpointClient(service.address, Door(Identity(role, index, generation)), callee)
            ends.push_async_callback(client.close)
            return client

        yield make
    await service.stop()


async def publish(client: CheckpointClient):
    config = '{"peft_type": "LORA", "r": 5, "lora_alpha": 8, "target_modules": ["q_proj"]}'
    return await client.publish(ADAPTER, 1, world_size=2, base_model="a" * 64, adapter_config_json=config)


async def put(client: CheckpointClient, sent) -> ShardRef:
    return await client.put_shard(sent.ref, [sent.data])


async def test_a_zombies_late_shard_is_refused(connect: Connect, make_tensors, make_shards) -> None:
    old, new = make_shards(make_tensors(1), 2, 1), make_shards(make_tensors(2), 2, 1)
    await put(connect(Role.LEARNER, 2, index=1), new[1])  # all ranks are of one generation
    with pytest.raises(StaleRequest, match=r"learner 0 \(generation 1\) was replaced: generation 2 has called here"):
        await put(connect(Role.LEARNER, 1), old[0])
    await put(connect(Role.LEARNER, 2), new[0])
    ref = await publish(connect(Role.CONTROLLER, 1))  # of the successor's shards
    assert ref.version == 1


async def test_a_zombies_late_publish_is_refused(connect: Connect, make_tensors, make_shards) -> None:
    for sent in make_shards(make_tensors(), 2, 1):
        await put(connect(Role.LEARNER, 1), sent)
    controller = connect(Role.CONTROLLER, 5)
    await controller.status()
    with pytest.raises(StaleRequest, match=r"controller 0 \(generation 4\) was replaced"):
        await publish(connect(Role.CONTROLLER, 4))
    with pytest.raises(NotFound):
        await controller.get(ADAPTER)
    assert (await publish(controller)).version == 1
    await connect(Role.OPERATOR, 0).status()  # of other roles there may be any number


async def test_a_shard_on_its_way_ends_when_its_sender_is_replaced(connect: Connect, make_tensors, make_shards) -> None:
    (sent,) = make_shards(make_tensors(), 1, 1)
    zombie = connect(Role.LEARNER, 1)
    call = zombie.stub.PutShard(metadata=zombie.peer.metadata)
    await call.write(pb.PutShardRequest(header=pb.ShardHeader(shard=codec.encode_shard(sent.ref))))
    await connect(Role.LEARNER, 2).status()
    await call.write(pb.PutShardRequest(chunk=sent.data))
    with pytest.raises(grpc.aio.AioRpcError, match="was replaced") as caught:
        await call
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION


async def test_a_call_for_another_process_is_refused(connect: Connect) -> None:
    for other in (Identity(Role.CHECKPOINT_MANAGER, 0, 2), Identity(Role.ROLLOUT, 0, 3)):
        with pytest.raises(StaleRequest, match=rf"meant for {other.role.replace('_', ' ')} 0 .* but checkpoint man"):
            await connect(Role.CONTROLLER, 9, callee=other).status()
    await connect(Role.CONTROLLER, 1).status()  # what never got in does not count as heard
    await connect(Role.CONTROLLER, 1, callee=None).status()


@pytest.mark.parametrize(
    "said", ["", "controller", "controller/0/-1", "king/0/1", "controller/0/1/2", "learner/0/" + "9" * 99]
)
@pytest.mark.parametrize("key", ["tandem-caller", "tandem-callee"])
async def test_what_is_no_identity_is_refused(connect: Connect, key: str, said: str) -> None:
    client = connect(Role.CONTROLLER, 1)
    client.peer.metadata = tuple((name, said if name == key else value) for name, value in client.peer.metadata)
    with pytest.raises(UserError, match=f"metadata {key} is no role/index/generation"):
        await client.status()


async def test_who_does_not_say_who_calls_is_refused(connect: Connect) -> None:
    client = connect(Role.CONTROLLER, 1)
    client.peer.metadata = client.peer.metadata[:1]
    with pytest.raises(UserError, match="the call has no tandem-caller"):
        await client.status()
