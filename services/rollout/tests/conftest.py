"""An untrained tiny model for all tests of the service, and a published adapter store."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tandem.config import Config
from tandem.storage.versions import VersionStore
from tandem.types import AdapterRef, PublishKind
from tandem_rollout.adapters import AdapterRules, stage_adapter
from tandem_rollout.base_model import BaseModel, read_base_model
from tandem_rollout.engine import LocalAdapter

sys.path.insert(0, str(Path(__file__).parent))
from rollout_stub_engine import ENGINE_RANK

# Engine steps so small that long prompts are computed in parts and images leave the encoder's cache.
SIZES = {"max_model_len": 1024, "kv_cache_gib": 0.25, "max_num_batched_tokens": 256, "max_num_seqs": 64}
Publish = Callable[..., AdapterRef]
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
def publish(base: BaseModel, tmp_path_factory: pytest.TempPathFactory) -> Publish:
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


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def engine(base: BaseModel) -> AsyncIterator[Any]:
    """The real engine on the random model."""
    from tandem_rollout.engine_vllm.environment import set_engine_environment

    set_engine_environment()
    from tandem_rollout.engine_vllm.engine import EngineVllm

    config = Config.model_validate(
        {
            "model": {"path": str(base.path)},
            "env": {"window": 0, "max_turns": 14},
            "learner": {"lora": {"vision": True, "rank": ENGINE_RANK}},
            "rollout": {"engine": {"max_lora_rank": ENGINE_RANK, **SIZES}},
        }
    )
    started = await EngineVllm.start(config, base, seed=0)
    yield started
    await started.close()


@pytest.fixture(scope="session")
def adapters(publish: Publish, base: BaseModel, tmp_path_factory: pytest.TempPathFactory) -> list[LocalAdapter]:
    """Two different adapters, versions 1 and 2, on language model and vision tower."""
    rules, folder = AdapterRules(base, ENGINE_RANK, vision=True), tmp_path_factory.mktemp("staged")
    return [stage_adapter(publish(version, rank=ENGINE_RANK), rules, folder) for version in (1, 2)]
