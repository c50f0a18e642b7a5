"""What is checked of an adapter before the engine sees it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tandem.storage import VersionStore
from tandem.types import AdapterRef, DataCorrupt, NotFound, PublishKind, UserError
from tandem_rollout.adapters import AdapterRules, stage_adapter
from tandem_rollout.base_model import BaseModel, read_base_model

Publish = Callable[..., AdapterRef]


@pytest.fixture
def rules(base: BaseModel) -> AdapterRules:
    return AdapterRules(base, max_lora_rank=8, vision=True)


def test_staged_copy_is_named_by_content(publish: Publish, rules: AdapterRules, tmp_path: Path) -> None:
    one, other = publish(3), publish(3, scale=0.1)  # one version, made twice: a run that was resumed
    first, second = (stage_adapter(ref, rules, tmp_path) for ref in (one, other))
    assert first.version == second.version == 3
    assert first.name != second.name and first.folder != second.folder
    assert first.name.startswith("tandem-v00000003-") and first.folder.is_dir()
    assert 0 < max(first.largest_b.values()) < max(second.largest_b.values())
    assert set(stage_adapter(publish(1, scale=0.0), rules, tmp_path).largest_b.values()) == {0.0}


def test_another_base_model(publish: Publish, rules: AdapterRules, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="trained on base model abcd"):
        stage_adapter(replace(publish(1), base_model="abcd"), rules, tmp_path)


def test_rank_beyond_the_engines(publish: Publish, rules: AdapterRules, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"rank 16 but rollout.engine.max_lora_rank is 8"):
        stage_adapter(publish(1, rank=16), rules, tmp_path)
    assert not any(path.name.startswith("tandem-v") for path in tmp_path.iterdir())


def test_tower_adapter_on_an_engine_without(publish: Publish, rules: AdapterRules, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"learner.lora.vision=true"):
        stage_adapter(publish(1), replace(rules, vision=False), tmp_path)


def test_modules_the_engine_would_leave_out(publish: Publish, rules: AdapterRules, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"applies no adapter to .*lm_head"):
        stage_adapter(publish(1, targets=r".*(q_proj|lm_head)"), rules, tmp_path)


def test_damaged_file(publish: Publish, rules: AdapterRules, tmp_path: Path) -> None:
    ref = publish(1)
    path = Path(ref.url.removeprefix("file://")) / "adapter_model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(DataCorrupt, match=r"adapter_model.safetensors"):
        stage_adapter(ref, rules, tmp_path)


def test_only_what_the_manifest_lists_is_copied(publish: Publish, rules: AdapterRules, tmp_path: Path) -> None:
    ref = publish(1)
    (Path(ref.url) / "new_embeddings.safetensors").write_bytes(b"never hashed")
    (Path(ref.url) / "elsewhere").symlink_to("/proc/self")
    staged = stage_adapter(ref, rules, tmp_path)
    names = {"adapter_config.json", "adapter_model.safetensors", "manifest.json"}
    assert {path.name for path in staged.folder.iterdir()} == names


def test_a_training_state_is_no_adapter(rules: AdapterRules, tmp_path: Path) -> None:
    files = {name: [b"1"] for name in ("training_state.safetensors", "adapter_config.json")}
    store = VersionStore(str(tmp_path / "store"))
    ref = store.commit(PublishKind.STATE, 1, rules.base.fingerprint, files, {})
    with pytest.raises(UserError, match="is a published state; load an adapter"):
        stage_adapter(ref, rules, tmp_path / "staged")


def test_reference_to_something_else(publish: Publish, rules: AdapterRules, tmp_path: Path) -> None:
    with pytest.raises(DataCorrupt, match="version 1"):
        stage_adapter(replace(publish(1), version=2), rules, tmp_path)
    with pytest.raises(NotFound):
        stage_adapter(replace(publish(1), url=str(tmp_path / "nowhere")), rules, tmp_path)


def test_base_model_folder(model_dir: Path, base: BaseModel, tmp_path: Path) -> None:
    vision = {base.chat.token_id(t) for t in ("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>")}
    assert vision <= set(base.forbidden_ids) and base.chat.end_id not in base.forbidden_ids
    with pytest.raises(UserError, match="does not exist"):
        read_base_model(tmp_path / "missing")
    (tmp_path / "model.safetensors").write_bytes((model_dir / "model.safetensors").read_bytes())
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(UserError, match="llama"):
        read_base_model(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "qwen3_vl"}')
    with pytest.raises(UserError, match="text_config"):
        read_base_model(tmp_path)
