"""An untrained tiny model for all tests of the service, and a published adapter store."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tandem.storage.versions import VersionStore
from tandem.types import AdapterRef, PublishKind
from tandem_rollout.base_model import BaseModel, read_base_model

sys.path.insert(0, str(Path(__file__).parent))  # for rollout_stub_engine

WORDS = [
    "Reach the red square.",
    "('move', 0)",
    "('move', 1)",
    "Moved.",
    "Hit a wall.",
    "Not understood.",
    "\n",
]
LANGUAGE = r".*language_model.*\.(q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj)"
WITH_TOWER = LANGUAGE + r"|.*visual\.(blocks\.\d+\.(attn\.(qkv|proj)|mlp\.linear_fc[12])|merger\.linear_fc[12])"


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random tiny Qwen3-VL."""
    from tandem.model.tiny import build_tiny

    folder = tmp_path_factory.mktemp("tiny")
    build_tiny(folder, WORDS, seed=0)
    return folder


@pytest.fixture(scope="session")
def base(model_dir: Path) -> BaseModel:
    return read_base_model(model_dir)


@pytest.fixture(scope="session")
def publish(base: BaseModel, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., AdapterRef]:
    """publish(version, scale=.., rank=.., targets=..) -> reference to a random adapter in its own store."""
    import torch
    from peft import LoraConfig, get_peft_model

    from tandem.model.loading import load_model

    def make(version: int, scale: float = 0.05, rank: int = 8, targets: str = WITH_TOWER) -> AdapterRef:
        folder = tmp_path_factory.mktemp("adapter")
        torch.manual_seed(version)
        model = get_peft_model(
            load_model(base.path),
            LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=targets),  # type: ignore[arg-type]
        )
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(weight, std=scale)
        model.save_pretrained(str(folder))
        config = json.loads((folder / "adapter_config.json").read_text())
        files = {
            "adapter_config.json": [json.dumps(config).encode()],
            "adapter_model.safetensors": [(folder / "adapter_model.safetensors").read_bytes()],
        }
        store = VersionStore(str(tmp_path_factory.mktemp("store")))
        return store.commit(PublishKind.ADAPTER, version, base.fingerprint, files, {})

    return make
