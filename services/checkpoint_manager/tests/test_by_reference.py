"""Shards that ranks write where the manager looks for them: what is taken, what is refused, what is swept."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import grpc
import numpy as np
import pytest
from safetensors.numpy import load_file

from tandem.config import Config
from tandem.rpc import codec
from tandem.rpc.clients import CheckpointClient
from tandem.rpc.gen.checkpoint.v1 import checkpoint_pb2 as pb
from tandem.storage import read_adapter, spool_folder, write_shard
from tandem.types import DataCorrupt, NotFound, PublishKind, UserError
from tandem_checkpoint_manager.main import start

ADAPTER = PublishKind.ADAPTER
BASE = "a" * 64
CONFIG = json.dumps({"peft_type": "LORA", "r": 5, "lora_alpha": 8, "target_modules": ["q_proj"]})


@pytest.fixture
def url(tmp_path: Path) -> str:
    return str(tmp_path / "store")


@pytest.fixture
async def client(url: str) -> AsyncIterator[CheckpointClient]:
    config = {"model": {"path": "m"}, "checkpoint": {"url": url, "shards": "shared_fs"}}
    service = await start(Config.model_validate(config))
    connected = CheckpointClient(service.address)
    yield connected
    await connected.close()
    await service.stop()


async def publish(client: CheckpointClient, version: int, world_size: int):
    return await client.publish(
        ADAPTER, version, world_size=world_size, base_model=BASE, adapter_config_json=CONFIG, timeout_s=60
    )


def waiting(url: str) -> list[Path]:
    return sorted(spool_folder(url).iterdir())


async def test_written_shards_join_like_sent_ones(url, client, make_tensors, make_shards) -> None:
    whole = make_tensors()
    for sent in make_shards(whole, 3):
        write_shard(url, sent.ref, [sent.data[:100], sent.data[100:]])
        assert await client.put_spooled(sent.ref) == sent.ref
        assert await client.put_spooled(sent.ref) == sent.ref  # told twice
    assert len(waiting(url)) == 3
    ref = await publish(client, 1, 3)
    joined = load_file(read_adapter(ref) / "adapter_model.safetensors")
    assert all(np.array_equal(joined[name], whole[name]) for name in whole)
    assert waiting(url) == []
    (late,) = make_shards(whole, 1)  # written and sent ranks may be mixed, and a published version sent again
    write_shard(url, late.ref, [late.data])
    await client.put_spooled(late.ref)
    assert await publish(client, 1, 1) == ref


@contextmanager
def refused(kind: type[Exception] | tuple[type[Exception], ...], message: str) -> Iterator[None]:
    with pytest.raises(kind, match=message) as caught:
        yield
    assert "\n" not in str(caught.value)


async def test_what_is_not_what_was_announced(url, client, make_tensors, make_shards) -> None:
    (sent,) = make_shards(make_tensors(), 1)
    with refused(NotFound, "rank 0 of 1: its rank has written no .*; .* else set checkpoint.shards=grpc"):
        await client.put_spooled(sent.ref)
    write_shard(url, sent.ref, [sent.data[:-1]])
    with refused(DataCorrupt, r"rank 0 of 1: truncated: .*\.safetensors has \d+ of \d+ bytes"):
        await client.put_spooled(sent.ref)
    write_shard(url, sent.ref, [sent.data[:-1], b"!"])
    with refused(DataCorrupt, r"rank 0 of 1: sha256 of .*\.safetensors is .*, announced"):
        await client.put_spooled(sent.ref)
    other = replace(sent.ref, version=2)
    write_shard(url, other, [sent.data])
    with refused(DataCorrupt, "the file says version 1, but it was sent as version 2"):
        await client.put_spooled(other)
    with refused(UserError, "no shard of rank 0 of 1 has come"):
        await publish(client, 1, 1)
    write_shard(url, sent.ref, [sent.data])
    await client.put_spooled(sent.ref)
    assert (await publish(client, 1, 1)).version == 1


async def test_a_file_that_changes_after_it_was_told_of(url, client, make_tensors, make_shards) -> None:
    (sent,) = make_shards(make_tensors(), 1)
    write_shard(url, sent.ref, [sent.data])
    await client.put_spooled(sent.ref)
    (path,) = waiting(url)
    path.write_bytes(sent.data[:-1] + b"!")
    with refused(DataCorrupt, r"rank 0 of 1: changed in .*\.safetensors since it came; send it again"):
        await publish(client, 1, 1)
    with pytest.raises(NotFound):
        await client.get(ADAPTER)
    write_shard(url, sent.ref, [sent.data])
    await client.put_spooled(sent.ref)
    assert (await publish(client, 1, 1)).version == 1


@pytest.mark.parametrize("sha256", ["../../secret", "a" * 63, "A" * 64, "/etc/passwd", "", "a" * 64 + "\n"])
async def test_nothing_from_the_wire_becomes_a_path(url, client, make_tensors, make_shards, sha256) -> None:
    (sent,) = make_shards(make_tensors(), 1)
    header = pb.ShardHeader(shard=codec.encode_shard(replace(sent.ref, sha256=sha256)), spooled=True)
    with pytest.raises(grpc.aio.AioRpcError, match="is no sha256 in hex"):
        await client.stub.PutShard(iter([pb.PutShardRequest(header=header)]), metadata=client.peer.metadata)


@pytest.mark.parametrize("make", [os.symlink, lambda _, path: os.mkfifo(path), lambda _, path: os.mkdir(path)])
async def test_neither_links_nor_pipes_nor_folders(url, client, tmp_path, make_tensors, make_shards, make) -> None:
    (sent,) = make_shards(make_tensors(), 1)
    write_shard(url, sent.ref, [sent.data])
    (path,) = waiting(url)
    path.rename(tmp_path / "elsewhere")
    make(tmp_path / "elsewhere", path)
    with refused((DataCorrupt, UserError), "rank 0 of 1: .*(is no file|symbolic links)"):
        await client.put_spooled(sent.ref)
    with pytest.raises(UserError, match="no shard of rank 0 of 1 has come"):
        await publish(client, 1, 1)


async def test_bytes_after_a_header_that_says_they_are_spooled(client, make_tensors, make_shards) -> None:
    (sent,) = make_shards(make_tensors(), 1)
    header = pb.ShardHeader(shard=codec.encode_shard(sent.ref), spooled=True)
    parts = [pb.PutShardRequest(header=header), pb.PutShardRequest(chunk=b"x")]
    with pytest.raises(grpc.aio.AioRpcError, match="none may follow"):
        await client.stub.PutShard(iter(parts), metadata=client.peer.metadata)


async def test_what_a_dead_rank_has_left_is_swept(url, client, make_tensors, make_shards) -> None:
    old, new, later = (make_shards(make_tensors(version), 1, version)[0] for version in (1, 2, 3))
    for sent in (old, new, later):
        write_shard(url, sent.ref, [sent.data])
    half = waiting(url)[1].with_suffix(".safetensors.0123abcd")  # it died while writing
    half.write_bytes(b"half")
    await client.put_spooled(new.ref)
    await publish(client, 2, 1)
    assert [path.name for path in waiting(url)] == [f"adapter-v00000003-rank00000-{later.ref.sha256}.safetensors"]


async def test_a_start_sweeps_them_too(url, make_tensors, make_shards) -> None:
    (sent,) = make_shards(make_tensors(), 1)
    config = Config.model_validate({"model": {"path": "m"}, "checkpoint": {"url": url}})
    for _ in range(2):
        service = await start(config)
        assert waiting(url) == []
        write_shard(url, sent.ref, [sent.data])
        os.rename(url, f"{url}-crashed")  # as it lies there after kill -9
        await service.stop()
        os.rename(f"{url}-crashed", url)
        (Path(url) / "lease.json").unlink(missing_ok=True)


def test_a_rank_that_does_not_see_the_folder(tmp_path, make_tensors, make_shards) -> None:
    (sent,) = make_shards(make_tensors(), 1)
    with refused(UserError, r"rank 0 of 1: no folder .*/nowhere/\.staging/shards here; .*checkpoint\.shards=grpc"):
        write_shard(str(tmp_path / "nowhere"), sent.ref, [sent.data])


def test_an_object_store_is_no_folder_to_share() -> None:
    with pytest.raises(ValueError, match="shared_fs needs a folder, but url is s3://bucket/x"):
        Config.model_validate({"model": {"path": "m"}, "checkpoint": {"url": "s3://bucket/x", "shards": "shared_fs"}})
