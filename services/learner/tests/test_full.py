"""All parameters trained: the same update whatever the number of ranks, and a model folder that loads."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from episodes import play_groups
from processes import learner, service
from safetensors.torch import load_file

from tandem.config import Config
from tandem.model.chat import ChatFormat
from tandem.model.loading import load_model
from tandem.rpc.clients import CheckpointClient, LearnerClient
from tandem.types import AdapterRef, PublishKind, UserError
from tandem_learner.comm import close_comm, open_comm, open_store
from tandem_learner.core import LearnerCore


def write_recipe(folder: Path, model: Path) -> str:
    tree = {
        "model": {"path": str(model)},
        "run": {"dir": str(folder), "steps": 10},
        "rollout": {"group_size": 4},
        "learner": {"lr": 1e-3, "trainable": "full", "microbatch_tokens": 200},
        "checkpoint": {"url": str(folder / "store"), "keep": 10},
        "security": {"adapters_from": ["/"]},
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(tree))
    return str(folder / "recipe.yaml")


async def save(at: LearnerClient, manager: CheckpointClient, version: int, kind: PublishKind) -> AdapterRef:
    shards = await at.export(version, kind, manager.peer.address)
    status = await at.status()
    assert status.adapter_config_json == ""
    return await manager.publish(kind, version, world_size=len(shards), base_model=status.base_model)


def largest_difference(left: AdapterRef, right: AdapterRef) -> float:
    tensors = [load_file(Path(ref.url) / "model.safetensors") for ref in (left, right)]
    assert set(tensors[0]) == set(tensors[1])
    return max(float((tensors[0][name] - tensors[1][name]).abs().max()) for name in tensors[0])


async def test_ranks_agree_and_a_restored_learner_goes_on(tiny_model: Path, tmp_path: Path) -> None:
    """Three steps at two ranks; the second one's state continued at one rank, from another store too."""
    groups = play_groups(tiny_model, groups=3, group_size=4, max_turns=4)
    recipe = write_recipe(tmp_path, tiny_model)
    async with service("tandem_checkpoint_manager", recipe) as (_, address):
        manager = CheckpointClient(address)
        async with learner(recipe, 2) as pair:
            for version in range(2):
                await pair.client.train_step(version, groups)
            saved = await save(pair.client, manager, 2, PublishKind.MODEL)
            state = await save(pair.client, manager, 2, PublishKind.STATE)
            result = await pair.client.train_step(2, groups)
            assert result.metrics["skipped_updates"] == 0
            after_three = await save(pair.client, manager, 3, PublishKind.MODEL)
            with pytest.raises(UserError, match="trainable is full: it exports no adapter"):
                await pair.client.export(3, PublishKind.ADAPTER, address)
        async with learner(recipe, 1, f"checkpoint.url={tmp_path / 'other'}") as single:
            assert await single.client.restore(saved, state) == 2
            await single.client.train_step(2, groups)
            async with service("tandem_checkpoint_manager", recipe, f"checkpoint.url={tmp_path / 'other'}") as (_, to):
                other = CheckpointClient(to)
                continued = await save(single.client, other, 3, PublishKind.MODEL)
                await other.close()
        await manager.close()
    assert largest_difference(continued, after_three) < 1e-5
    assert largest_difference(saved, after_three) > 1e-4
    folder = Path(after_three.url)
    model, published = load_model(folder), load_file(folder / "model.safetensors")
    assert {name: p.shape for name, p in model.named_parameters()} == {n: t.shape for n, t in published.items()}
    assert all(torch.equal(p, published[name]) for name, p in model.named_parameters())
    assert ChatFormat.load(folder).encode("Moved.") == ChatFormat.load(tiny_model).encode("Moved.")
    base = dict(load_model(tiny_model).named_parameters())
    still = [name for name in base if torch.equal(base[name], published[name])]
    assert still == [], "every parameter is trained, vision tower, embedding and head too"


def test_a_model_whose_head_is_its_embedding_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "tied"
    shutil.copytree(tiny_model, folder)
    model: Any = load_model(folder)
    model.config.tie_word_embeddings = model.config.text_config.tie_word_embeddings = True
    model.lm_head.weight = model.model.language_model.embed_tokens.weight
    model.save_pretrained(folder)
    config = Config.model_validate({"model": {"path": str(folder)}, "learner": {"trainable": "full"}})
    comm = open_comm(config, 0, 1, open_store(0, 1, "", 30))
    try:
        with pytest.raises(UserError, match="one tensor"):
            LearnerCore(config, comm)
    finally:
        close_comm()
