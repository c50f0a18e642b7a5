"""checkpoint.shards shared_fs: a rank's shard lies where the manager looks for it, and no bytes travel."""

from __future__ import annotations

from pathlib import Path

import pytest
from processes import learner, service

from tandem.config import Config
from tandem.rpc.clients import CheckpointClient
from tandem.storage import read_adapter, spool_folder
from tandem.types import PublishKind, UserError


async def test_ranks_write_their_shards_and_the_manager_joins_them(tiny_model: Path, tmp_path: Path) -> None:
    path = tmp_path / "recipe.json"
    config = Config.model_validate(
        {
            "model": {"path": str(tiny_model)},
            "run": {"dir": str(tmp_path)},
            "learner": {"lora": {"rank": 6}},
            "checkpoint": {"shards": "shared_fs"},
        }
    )
    path.write_text(config.model_dump_json())
    async with learner(str(path), 2) as pair:
        # the learner is up before any manager has made the folder
        with pytest.raises(UserError, match=r"rank \d of 2: no folder .*; .* set checkpoint\.shards=grpc"):
            await pair.client.export(0, PublishKind.ADAPTER, "127.0.0.1:1")
        async with service("tandem_checkpoint_manager", str(path)) as (_, manager):
            shards = await pair.client.export(0, PublishKind.ADAPTER, manager)
            assert await pair.client.export(0, PublishKind.ADAPTER, manager) == shards  # the same again is welcome
            files = list(spool_folder(config.store_url).iterdir())
            assert {file.stat().st_size for file in files} == {shard.size for shard in shards}
            assert all(any(shard.sha256 in file.name for file in files) for shard in shards)
            status, checkpoints = await pair.client.status(), CheckpointClient(manager)
            published = await checkpoints.publish(
                PublishKind.ADAPTER,
                0,
                world_size=2,
                base_model=status.base_model,
                adapter_config_json=status.adapter_config_json,
            )
            await checkpoints.close()
    assert read_adapter(published).is_dir()
