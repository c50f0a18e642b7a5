"""What a save of the training state costs training: the whole of it, where all wait for it, or the snapshot alone.

Real ranks, a real checkpoint manager, real steps (supervised ones: they need no engine). The large adapter has as many
parameters as one of Qwen3-VL-8B at rank 32, on the tiny model at a rank that no one would train: its save is that of
the 8B model's adapter, its step is not.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import torch

from tandem.config import Config, load_recipe
from tandem.model.loading import load_model
from tandem.rpc.clients import CheckpointClient, LearnerClient
from tandem.rpc.ports import held_address
from tandem.storage import Placement, ShardMeta
from tandem.types import PublishKind
from tandem_controller.demonstrations import Expert
from tandem_learner.host_copy import HostMemory
from tests.bench.report import show

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "deploy/recipes/maze2d-cpu.yaml"
MODEL = ROOT / "models/tiny-qwen3vl"
LARGE = 87_293_952  # parameters of a rank 32 adapter on all linears of Qwen3-VL-8B's language model
REPEATS = 5


@asynccontextmanager
async def service(module: str, *arguments: str) -> AsyncIterator[str]:
    """A process of its own; its address."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", module, *arguments, stdout=asyncio.subprocess.PIPE, env={**os.environ}
    )
    try:
        assert process.stdout is not None
        yield json.loads(await process.stdout.readline())["address"]
    finally:
        process.terminate()
        await process.wait()


def rank_of(parameters: int) -> int:
    """The LoRA rank at which the tiny model's adapter has at least so many parameters."""
    config = load_recipe(RECIPE, [f"model.path={MODEL}"])
    targets = re.compile(str(config.learner.lora.target_modules))
    modules = [module for name, module in load_model(MODEL).named_modules() if targets.fullmatch(name)]
    linears = [module for module in modules if isinstance(module, torch.nn.Linear)]
    return -(-parameters // sum(linear.in_features + linear.out_features for linear in linears))


async def timed(work: Awaitable[object]) -> float:
    """Milliseconds."""
    began = time.perf_counter()
    await work
    return 1000 * (time.perf_counter() - began)


async def measure(folder: Path, name: str, lora_rank: int, world_size: int) -> None:
    overrides = [
        *(f"model.path={MODEL}", f"run.dir={folder}", f"checkpoint.url={folder / name}", "checkpoint.keep=1"),
        *("learner.algo.loss=sft", "learner.lr=1e-6", "sft.batch=4", f"learner.world_size={world_size}"),
        *(f"learner.lora.rank={lora_rank}", f"rollout.engine.max_lora_rank={lora_rank}"),
    ]
    config: Config = load_recipe(RECIPE, overrides)
    groups = Expert(config).take(1000)[0]
    async with AsyncExitStack() as stack:
        rendezvous = ["--rendezvous", stack.enter_context(held_address())] if world_size > 1 else []
        services = [service("tandem_checkpoint_manager", str(RECIPE), *overrides)]
        for rank in range(world_size):
            services.append(service("tandem_learner", str(RECIPE), *overrides, *rendezvous, "--rank", str(rank)))
        addresses = await asyncio.gather(*map(stack.enter_async_context, services))
        manager, learner = CheckpointClient(addresses[0]), LearnerClient(addresses[1])
        base_model = (await learner.status()).base_model

        async def save(version: int) -> None:
            await learner.export(version, PublishKind.STATE, addresses[0])
            await manager.publish(PublishKind.STATE, version, world_size=world_size, base_model=base_model)

        async def step(version: int) -> None:
            await learner.train_step(version, groups)

        sides: dict[str, list[float]] = {}
        for repeat in range(REPEATS + 1):
            version = 2 * repeat
            found = {"save, all waiting": await timed(save(version)), "step": await timed(step(version))}
            found["snapshot"] = await timed(learner.snapshot(version + 1, PublishKind.STATE))
            saving = asyncio.create_task(timed(save(version + 1)))
            found["step beside a save"] = await timed(step(version + 1))
            found["save beside a step"] = await saving
            for side, value in found.items() if repeat else ():  # the first round warms up
                sides.setdefault(side, []).append(value)
        size = (await learner.snapshot(version + 2, PublishKind.STATE)).size
        await learner.close()
        await manager.close()
    show(f"save of a training state, {name}, {size / 1e6:.0f} MB, {world_size} rank(s)", "ms", sides)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("name", ["tiny", "large"])
async def test_snapshot_against_a_save_that_all_wait_for(tmp_path: Path, name: str, world_size: int) -> None:
    await measure(tmp_path, name, 32 if name == "tiny" else rank_of(LARGE), world_size)


def test_memory_used_again_against_fresh_memory() -> None:
    """A copy of a state of the large adapter: the first one pays for the pages."""
    state = {f"{index}": torch.rand(2**18) for index in range(2 * LARGE // 2**18)}
    places = {name: Placement((2**18,), (0,)) for name in state}
    meta = ShardMeta(PublishKind.STATE, 1, 0, 1, "b", places)
    target = torch.zeros(2 * LARGE)
    source = torch.zeros(2 * LARGE)
    sides: dict[str, list[float]] = {"fresh memory": [], "used again": [], "one plain copy": []}
    for _ in range(REPEATS):
        memory = HostMemory(torch.device("cpu"))
        for side in ("fresh memory", "used again"):
            began = time.perf_counter()
            memory.copy(state, meta)
            sides[side].append(1000 * (time.perf_counter() - began))
        began = time.perf_counter()
        target.copy_(source)
        sides["one plain copy"].append(1000 * (time.perf_counter() - began))
    show("snapshot of 698 MB in 666 tensors", "ms", sides)
