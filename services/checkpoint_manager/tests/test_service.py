"""The service over real gRPC, in process and as a command."""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2
from safetensors.numpy import load_file

from tandem.config import Config
from tandem.rpc import codec
from tandem.rpc.clients import CheckpointClient
from tandem.rpc.gen.checkpoint.v1 import checkpoint_pb2 as pb
from tandem.storage import VersionStore, read_adapter, read_scores
from tandem.types import DataCorrupt, NotFound, PublishKind, StaleRequest, UserError
from tandem_checkpoint_manager.main import start
from tandem_checkpoint_manager.servicer import SERVICE

ADAPTER = PublishKind.ADAPTER
BASE = "a" * 64
CONFIG = json.dumps({"peft_type": "LORA", "r": 5, "lora_alpha": 8, "target_modules": ["q_proj"]})


def config(tmp_path: Path, **checkpoint: object) -> Config:
    return Config.model_validate({"model": {"path": "m"}, "checkpoint": {"url": str(tmp_path / "store"), **checkpoint}})


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[CheckpointClient]:
    service = await start(config(tmp_path))
    connected = CheckpointClient(service.address)
    yield connected
    await connected.close()
    await service.stop()


async def put_all(client: CheckpointClient, shards) -> None:
    for sent in shards:
        chunks = [sent.data[at : at + 500] for at in range(0, len(sent.data), 500)]
        assert await client.put_shard(sent.ref, chunks) == sent.ref


async def publish(client: CheckpointClient, version: int, world_size: int, **more):
    return await client.publish(
        ADAPTER, version, world_size=world_size, base_model=BASE, adapter_config_json=CONFIG, **more
    )


async def test_put_publish_get_list_delete(client, make_tensors, make_shards) -> None:
    whole = make_tensors()
    await put_all(client, make_shards(whole, 2, 1))
    first = await publish(client, 1, 2, metadata_json='{"cursor": 3}')
    joined = load_file(read_adapter(first) / "adapter_model.safetensors")
    assert all(np.array_equal(joined[name], whole[name]) for name in whole)
    found, metadata = await client.get(ADAPTER)
    assert found == first and json.loads(metadata) == {"cursor": 3}
    await put_all(client, make_shards(make_tensors(1), 3, 2))
    second = await publish(client, 2, 3)
    assert await client.list(ADAPTER) == (first, second)
    assert (await client.get(ADAPTER))[0] == second and (await client.get(ADAPTER, 1))[0] == first
    await client.delete(ADAPTER, 1)
    assert await client.list(ADAPTER) == (second,)


async def test_refusals_reach_the_client_as_what_they_are(client, make_tensors, make_shards) -> None:
    with pytest.raises(NotFound, match="no adapter is published"):
        await client.get(ADAPTER)
    sent = make_shards(make_tensors(), 1, 4)[0]
    with pytest.raises(DataCorrupt, match="truncated"):
        await client.put_shard(sent.ref, [sent.data[:-1]])
    with pytest.raises(UserError, match="no shard of rank 0 of 1 has come"):
        await publish(client, 4, 1)
    await put_all(client, [sent])
    ref = await publish(client, 4, 1)
    with pytest.raises(StaleRequest, match="cannot be deleted"):
        await client.delete(ADAPTER, 4)
    await put_all(client, make_shards(make_tensors(), 1, 3))
    with pytest.raises(StaleRequest, match="v4 is published already"):
        await publish(client, 3, 1)
    assert (await client.get(ADAPTER))[0] == ref


async def test_a_stream_without_a_header_or_with_large_chunks(client, make_tensors, make_shards) -> None:
    with pytest.raises(grpc.aio.AioRpcError, match="the first message must be the header"):
        await client.stub.PutShard(iter([pb.PutShardRequest(chunk=b"x")]), metadata=client.peer.metadata)
    with pytest.raises(grpc.aio.AioRpcError, match="the first message must be the header"):
        await client.stub.PutShard(iter([]), metadata=client.peer.metadata)
    (sent,) = make_shards(make_tensors(layers=2000), 1)
    with pytest.raises(UserError, match=f"a chunk has {len(sent.data)} bytes; send at most 1048576"):
        await client.put_shard(sent.ref, [sent.data])


async def test_a_retried_delete_is_harmless(client, make_tensors, make_shards) -> None:
    for version in (1, 2):
        await put_all(client, make_shards(make_tensors(version), 1, version))
        await publish(client, version, 1)
    request = pb.DeleteAdapterRequest(request_id="r1", kind=codec.encode_kind(ADAPTER), version=1)
    for _ in range(2):
        await client.stub.DeleteAdapter(request, metadata=client.peer.metadata)
    with pytest.raises(NotFound):
        await client.delete(ADAPTER, 1)


async def test_a_client_that_goes_away_leaves_no_shard(tmp_path, client, make_tensors, make_shards) -> None:
    (sent,) = make_shards(make_tensors(), 1)
    call = client.stub.PutShard(metadata=client.peer.metadata)
    header = pb.ShardHeader(shard=codec.encode_shard(sent.ref))
    await call.write(pb.PutShardRequest(header=header))
    await call.write(pb.PutShardRequest(chunk=sent.data[:100]))
    call.cancel()
    await put_all(client, [sent])  # a later call is served, and the cancelled one has no part in it
    await publish(client, 1, 1)
    assert not list((tmp_path / "store" / ".staging" / "shards").glob("adapter-*"))


async def test_scores_and_status(client, make_tensors, make_shards) -> None:
    assert (await client.status()).latest == {}
    await put_all(client, make_shards(make_tensors(), 1, 1))
    ref = await publish(client, 1, 1)
    for scores in ({"solve_rate": 0.25, "return_mean": -1.5}, {"solve_rate": 0.5}, {"solve_rate": 0.5}):
        await client.score(ADAPTER, 1, scores)
    store = VersionStore(str(Path(ref.url).parent.parent))
    assert read_scores(store, ADAPTER, 1) == {"solve_rate": 0.5, "return_mean": -1.5}
    assert (await client.get(ADAPTER))[0] == ref  # the version is as it was
    with pytest.raises(NotFound, match="no adapter v2 is published"):
        await client.score(ADAPTER, 2, {"solve_rate": 1.0})
    with pytest.raises(UserError, match="score 'x' is nan"):
        await client.score(ADAPTER, 1, {"x": math.nan})
    status = await client.status()
    assert (status.url, status.latest, status.problem, status.mirror) == (store.blobs.url, {ADAPTER: 1}, "", None)
    assert status.publish_bytes == ref.size and status.publish_seconds > 0


async def test_health(client) -> None:
    check = client.peer.channel.unary_unary(
        "/grpc.health.v1.Health/Check",
        request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
        response_deserializer=health_pb2.HealthCheckResponse.FromString,
    )
    reply = await check(health_pb2.HealthCheckRequest(service=SERVICE))
    assert reply.status == health_pb2.HealthCheckResponse.SERVING


async def test_start_refuses_what_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"writing /dev/null/x/lease/probe-.*checkpoint.url"):
        await start(config(tmp_path, url="/dev/null/x"))
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(UserError, match="cannot listen on"):
        await start(config(tmp_path), port=taken.getsockname()[1])
    assert os.listdir(tmp_path) == []


async def test_a_refused_start_leaves_store_and_port_alone(tmp_path, make_tensors, make_shards) -> None:
    service = await start(config(tmp_path))
    client = CheckpointClient(service.address)
    await put_all(client, make_shards(make_tensors(), 1, 1))
    port = int(service.address.rpartition(":")[2])
    with pytest.raises(UserError, match="cannot listen on"):
        await start(config(tmp_path), port=port, rewind_to=0)
    ref = await publish(client, 1, 1)  # the shard that the running one has staged is still there
    await client.close()
    await service.stop()
    with pytest.raises(UserError, match=r"/dev/null/x"):
        await start(config(tmp_path, url="/dev/null/x"), port=port)
    again = await start(config(tmp_path), port=port)
    assert again.manager.get(ADAPTER).ref == ref
    await again.stop()


# ---- as a command


def command(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tandem_checkpoint_manager", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=dict(os.environ),
    )


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    path = tmp_path / "recipe.yaml"
    path.write_text(f"model: {{path: m}}\nrun: {{dir: {tmp_path / 'runs'}, name: r}}\n")
    return str(path)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_command_serves_and_stops(tmp_path, recipe, make_tensors, make_shards, number) -> None:
    with command(recipe, "checkpoint.keep=2", "--port", "0") as process:
        assert process.stdout and process.stderr
        told = json.loads(process.stdout.readline())
        assert told["service"] == "checkpoint_manager"
        client = CheckpointClient(told["address"])
        await put_all(client, make_shards(make_tensors(), 2))
        ref = await publish(client, 1, 2)
        await client.close()
        process.send_signal(number)
        assert process.wait(30) == 0, process.stderr.read()
    assert ref.url == str(tmp_path / "runs" / "r" / "checkpoints" / "adapters" / "v00000001")
    assert (Path(ref.url) / "manifest.json").exists()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "checkpoint.url=/dev/null/x",
            ": Not a directory; a file stands where a folder should; choose another checkpoint.url",
        ),
        ("checkpoint.url=nosuch://x", "store nosuch://x"),
        ("checkpoint.kep=3", "unknown key 'checkpoint.kep'; did you mean 'keep'?"),
    ],
)
def test_command_refuses_bad_input_in_one_line(recipe: str, override: str, message: str) -> None:
    with command(recipe, override) as process:
        out, err = process.communicate(timeout=60)
    assert process.returncode == 2 and out == ""
    assert message in err and err.count("\n") == 1
