"""Rollout: episodes played concurrently against one after another, on one real vLLM replica with an adapter's room."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tandem.config import Config, load_recipe
from tandem.envs import tasks
from tandem.rpc.clients import RolloutClient
from tandem.types import ContextPolicy, RolloutTask, Sampling
from tandem_rollout.main import start
from tests.bench.report import show

ROOT = Path(__file__).parents[2]
REPEATS = 3
RECIPE = [f"model.path={ROOT}/models/tiny-qwen3vl"]


async def turns_per_second(client: RolloutClient, task: RolloutTask) -> float:
    """Play the task; turns over wall time, the gRPC stream included."""
    began = time.perf_counter()
    groups = [group async for group in client.rollout(task)]
    turns = sum(len(trajectory.turns) for group in groups for trajectory in group.trajectories)
    return turns / (time.perf_counter() - began)


def training_task(config: Config, seeds: tuple[int, ...]) -> RolloutTask:
    """A step's rollouts under the base model."""
    sampling = Sampling(1.0, 1.0, config.rollout.max_tokens)
    return RolloutTask(config.env.id, seeds, 8, 0, sampling, ContextPolicy(1), config.env.max_turns, 0)


@pytest.mark.vllm
@pytest.mark.timeout(900)
async def test_concurrent_episodes_against_one_at_a_time() -> None:
    config = load_recipe(ROOT / "deploy/recipes/maze2d-cpu.yaml", RECIPE)
    service = await start(config)
    client = RolloutClient(service.address)
    seeds = tasks.seeds(config.env.id, "train", 32 * (REPEATS + 1))
    many = training_task(config, ())
    together: list[float] = []
    alone: list[float] = []
    for repeat in range(REPEATS + 1):
        mine = seeds[32 * repeat : 32 * (repeat + 1)]
        concurrent = await turns_per_second(client, replace(many, seeds=tuple(mine)))
        rates = [await turns_per_second(client, replace(many, seeds=(seed,), group_size=1)) for seed in mine[:8]]
        if repeat:  # the first round warms up
            together.append(concurrent)
            alone.append(len(rates) / sum(1 / rate for rate in rates))
    await client.close()
    await service.stop()
    show("rollout, one replica", "turns/s", {"32 groups of 8 at once": together, "one episode at a time": alone})


@pytest.mark.vllm
@pytest.mark.timeout(900)
async def test_continuous_against_deterministic() -> None:
    """What `run.deterministic` costs: requests in rounds, caches emptied for every task."""
    rates: dict[str, list[float]] = {"continuous": [], "deterministic": []}
    services, clients = [], {}
    for side in rates:
        more = f"run.deterministic={json.dumps(side == 'deterministic')}"
        config = load_recipe(ROOT / "deploy/recipes/maze2d-cpu.yaml", [*RECIPE, more])
        services.append(await start(config))
        clients[side] = RolloutClient(services[-1].address)
    seeds = tasks.seeds(config.env.id, "train", 32 * (REPEATS + 1))
    for repeat in range(REPEATS + 1):
        for side, client in clients.items():
            task = training_task(config, tuple(seeds[32 * repeat : 32 * (repeat + 1)]))
            rate = await turns_per_second(client, task)
            if repeat:  # the first round warms up
                rates[side].append(rate)
    for client in clients.values():
        await client.close()
    for service in services:
        await service.stop()
    show("rollout, one replica, 32 groups of 8", "turns/s", rates)
