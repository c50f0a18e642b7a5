"""peft loads what the checkpoint manager publishes, and it acts like the adapter that was split."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tandem.storage import Retention
from tandem.types import PublishKind
from tandem_checkpoint_manager.core import CheckpointManager

torch = pytest.importorskip("torch")
peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def base():
    """A tiny causal language model with random weights, made here."""
    torch.manual_seed(0)
    settings = transformers.LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=32,
    )
    return transformers.LlamaForCausalLM(settings).eval()


@pytest.mark.parametrize("world_size", [1, 3])
def test_peft_loads_what_was_published(base, make_shards, tmp_path: Path, world_size: int) -> None:
    prompt = torch.tensor([[1, 2, 3, 4]])
    plain = base(prompt).logits
    lora = peft.LoraConfig(r=5, lora_alpha=8, target_modules=["q_proj", "down_proj"], init_lora_weights=False)
    trained = peft.get_peft_model(base, lora)
    expected = trained(prompt).logits
    state = {name: value.numpy().copy() for name, value in peft.get_peft_model_state_dict(trained).items()}
    settings = trained.peft_config["default"].to_dict()
    config_json = json.dumps({**settings, "target_modules": sorted(settings["target_modules"])})
    trained.unload()
    assert torch.equal(base(prompt).logits, plain) and not torch.allclose(expected, plain, atol=1e-3)

    manager = CheckpointManager(str(tmp_path), Retention(3))
    for sent in make_shards(state, world_size):
        manager.put(sent.ref, [sent.data])
    ref = manager.publish(
        PublishKind.ADAPTER, 1, world_size=world_size, base_model="a" * 64, adapter_config_json=config_json
    )
    loaded = peft.PeftModel.from_pretrained(base, ref.url)
    assert torch.equal(loaded(prompt).logits, expected)
    assert {name: v.numpy().tolist() for name, v in peft.get_peft_model_state_dict(loaded).items()} == {
        name: v.tolist() for name, v in state.items()
    }
    loaded.unload()
