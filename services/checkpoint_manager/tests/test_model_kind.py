"""Full training publishes a model folder: joined weights, and the base model's other files as they are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from tandem.storage import Retention, read_adapter
from tandem.types import AdapterRef, PublishKind, UserError
from tandem_checkpoint_manager.core import CheckpointManager

BASE = "a" * 64
MODEL, STATE = PublishKind.MODEL, PublishKind.STATE
ASSETS = {"config.json": '{"model_type": "qwen3_vl"}', "tokenizer.json": "{}", "preprocessor_config.json": "{}\n"}


@pytest.fixture
def base(tmp_path: Path) -> Path:
    folder = tmp_path / "base"
    folder.mkdir()
    for name, text in {**ASSETS, "CARD.md": "not part of the model", "model.safetensors": "other weights"}.items():
        (folder / name).write_text(text)
    return folder


def weights(seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    shapes = {"model.visual.patch_embed.proj.weight": (5, 3, 2, 2, 2), "lm_head.weight": (7, 4), "norm.weight": (4,)}
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def publish(manager: CheckpointManager, shards, version: int, kind: PublishKind = MODEL) -> AdapterRef:
    for sent in shards:
        manager.put(sent.ref, [sent.data])
    return manager.publish(kind, version, world_size=len(shards), base_model=BASE)


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_a_model_folder_is_the_joined_weights_and_the_bases_files(base, make_shards, tmp_path, world_size) -> None:
    manager = CheckpointManager(str(tmp_path / "store"), Retention(3), base_folder=base)
    whole = weights()
    ref = publish(manager, make_shards(whole, world_size, 4, kind=MODEL), 4)
    folder = read_adapter(ref)
    assert {path.name for path in folder.iterdir()} == {*ASSETS, "model.safetensors", "manifest.json"}
    assert {name: (folder / name).read_text() for name in ASSETS} == ASSETS
    joined = load_file(folder / "model.safetensors")
    assert set(joined) == set(whole) and all(np.array_equal(joined[name], whole[name]) for name in whole)
    with safe_open(folder / "model.safetensors", "numpy") as file:
        assert file.metadata() == {"format": "pt"}, "transformers refuses a file that does not say so"
    assert publish(manager, make_shards(whole, world_size, 4, kind=MODEL), 4) == ref, "the same again is welcome"


def test_a_base_without_a_tokenizer_is_refused_and_nothing_shows(base, make_shards, tmp_path) -> None:
    (base / "tokenizer.json").unlink()
    manager = CheckpointManager(str(tmp_path / "store"), Retention(3), base_folder=base)
    with pytest.raises(UserError, match=f"model.path {base}: tokenizer.json"):
        publish(manager, make_shards(weights(), 2, 1, kind=MODEL), 1)
    assert manager.list(MODEL) == ()


def test_the_models_of_kept_states_stay(base, make_shards, tmp_path) -> None:
    manager = CheckpointManager(str(tmp_path / "store"), Retention(1), base_folder=base)
    for version in range(1, 5):
        publish(manager, make_shards(weights(version), 1, version, kind=MODEL), version)
        if version == 2:
            state = make_shards({"step/updates": np.array([2.0], np.float32)}, 1, version, kind=STATE)
            publish(manager, state, version, STATE)
    assert [item.manifest.version for item in manager.list(MODEL)] == [2, 4]
