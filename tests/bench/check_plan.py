"""`make plan-check`: what `tandem plan` foresees of a model of 170 M parameters, made here, against real processes.

The whole way: a learner rank and a checkpoint manager run, the adapter and the state are exported and published, the
adapter is merged into the base, and an engine starts on what that makes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from rich.console import Console
from rich.table import Table
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

from tandem.config import Config, load_recipe
from tandem.rpc.clients import CheckpointClient, LearnerClient
from tandem.storage import TENSOR_FILE, read_manifest
from tandem.types import AdapterRef, PublishKind
from tandem_checkpoint_manager.checkpoints.export import export_merged
from tandem_checkpoint_manager.checkpoints.find import find, open_store
from tandem_learner.plan import budgets
from tandem_learner.plan.cli import Plan, foresee

TINY = Path(__file__).parents[2] / "models/tiny-qwen3vl"
SIZES = {"num_hidden_layers": 12, "hidden_size": 1024, "intermediate_size": 3072, "vocab_size": 8192, "head_dim": 64}
HEADS = {"num_attention_heads": 16, "num_key_value_heads": 8}
MIB = 2**20
TOLERANCE = 0.1


@dataclass(frozen=True)
class Running:
    """A service's process."""

    pid: int
    address: str

    def memory(self, field: str) -> int:
        """`VmRSS` (now) or `VmHWM` (most so far), bytes."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


@contextmanager
def service(module: str, recipe: Path) -> Iterator[Running]:
    process = subprocess.Popen([sys.executable, "-m", module, str(recipe)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield Running(process.pid, json.loads(process.stdout.readline())["address"])
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a random model with the tiny one's tokenizer and image processor."""
    folder = tmp_path_factory.mktemp("mid")
    model = folder / "model"
    model.mkdir()
    for file in TINY.iterdir():
        if file.suffix in (".json", ".jinja"):
            os.link(file, model / file.name) if file.name != "config.json" else None
    settings = Qwen3VLConfig.from_pretrained(TINY)
    text, vision = settings.text_config, settings.vision_config
    for name, value in {**SIZES, **HEADS, "initializer_range": 0.02}.items():
        setattr(text, name, value)
    text.rope_parameters["mrope_section"] = [12, 10, 10]  # type: ignore[union-attr,index]
    vision.out_hidden_size = SIZES["hidden_size"]  # type: ignore[union-attr]
    torch.manual_seed(0)
    Qwen3VLForConditionalGeneration(settings).save_pretrained(model)
    path = folder / "recipe.yaml"
    path.write_text(
        f"model: {{path: {model}}}\nrun: {{dir: {folder}, name: run}}\ncheckpoint: {{url: {folder / 'store'}}}\n"
        "rollout: {engine: {max_model_len: 256, max_num_seqs: 8, kv_cache_gib: 0.75}}\n"
    )
    return path


@pytest.mark.timeout(900)
async def test_what_was_foreseen(recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_CPU_KVCACHE_SPACE", raising=False)  # it would win over the recipe's kv_cache_gib
    config = load_recipe(recipe)
    plan = foresee(config, None, 60)
    rows = await measured_by_services(recipe, plan)
    found = find(open_store(config.checkpoint.url), PublishKind.ADAPTER, "latest")
    export_merged(found, Path(config.model.path), tmp_path / "merged")
    rows.append(await measured_by_engine(config, tmp_path / "merged", plan))
    table = Table(title="tandem plan, 170 M parameters, float32", title_justify="left")
    for column in ("what", "foreseen", "measured", "foreseen / measured"):
        table.add_column(column, justify="left" if column == "what" else "right")
    for what, foreseen, measured, _ in rows:
        table.add_row(what, f"{foreseen / MIB:,.1f} MiB", f"{measured / MIB:,.1f} MiB", f"{foreseen / measured:.3f}")
    Console().print(table)
    for what, foreseen, measured, at_most in rows:
        assert at_most or foreseen == pytest.approx(measured, rel=TOLERANCE), what
        assert measured <= foreseen * (1 if at_most else 1 + TOLERANCE), what


async def measured_by_services(recipe: Path, plan: Plan) -> list[tuple[str, int, int, bool]]:
    """(what, foreseen, measured, whether it is a bound) of manager, learner and the files they make."""
    with service("tandem_checkpoint_manager", recipe) as manager, service("tandem_learner", recipe) as learner:
        idle = manager.memory("VmRSS")
        rank = learner.memory("VmRSS")
        made = {kind: await publish(kind, learner, manager) for kind in (PublishKind.ADAPTER, PublishKind.STATE)}
        peak = manager.memory("VmHWM")
    sizes = {kind: read_manifest(ref).files[TENSOR_FILE[kind]].size for kind, ref in made.items()}
    foreseen_peak = budgets.MANAGER_BASE + budgets.MANAGER_GROWTH + plan.saved.largest_tensor
    return [
        ("adapter, published", plan.saved.weights, sizes[PublishKind.ADAPTER], False),
        ("training state, published", plan.saved.state, sizes[PublishKind.STATE], False),
        ("learner rank between steps", plan.budgets[1][1].at_rest, rank, False),
        ("checkpoint manager, idle", budgets.MANAGER_BASE, idle, False),
        ("checkpoint manager, at most", foreseen_peak, peak, True),
    ]


async def publish(kind: PublishKind, learner: Running, manager: Running) -> AdapterRef:
    client, store = LearnerClient(learner.address), CheckpointClient(manager.address)
    try:
        status = await client.status()
        await client.export(0, kind, manager.address)
        config = status.adapter_config_json if kind is PublishKind.ADAPTER else ""
        return await store.publish(kind, 0, world_size=1, base_model=status.base_model, adapter_config_json=config)
    finally:
        await client.close()
        await store.close()


async def measured_by_engine(config: Config, model: Path, plan: Plan) -> tuple[str, int, int, bool]:
    """The KV cache of an engine on the merged model, as the engine counts its blocks."""
    from tandem_rollout.main import start  # vLLM reads its environment when it is imported

    engine_config = config.model_copy(update={"model": config.model.model_copy(update={"path": str(model)})})
    running = await start(engine_config)
    try:
        cache = running.replica.engine.llm.vllm_config.cache_config  # type: ignore[attr-defined]
        tokens = cache.num_gpu_blocks * cache.block_size
    finally:
        await running.stop()
    token = budgets.kv_token(plan.config, plan.shapes)
    return "KV cache of an engine on the merged model", plan.kv_tokens * token, tokens * token, False
