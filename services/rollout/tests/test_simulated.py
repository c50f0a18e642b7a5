"""The engine without a model: answers by rule, times by seed, real adapters, an end like an engine's."""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rollout_stub_engine import ENGINE_RANK
from tests.scrape import Scraper

from tandem import envs
from tandem.config import Config
from tandem.obs import instruments as of
from tandem.rpc.clients import RolloutClient
from tandem.types import AdapterRef, ContextPolicy, RolloutTask, Sampling, TrajectoryGroup, Unavailable
from tandem_rollout.base_model import BaseModel
from tandem_rollout.engine import ContextFull, Request
from tandem_rollout.engine_simulated import EngineSimulated
from tandem_rollout.main import start

SEEDS = tuple(envs.seeds("maze2d:tiny", "train", 6))
TASK = RolloutTask("maze2d:tiny", SEEDS, 4, 0, Sampling(max_tokens=8), ContextPolicy(1), 14, 11)
ACTIONS = {f"('move', {direction})" for direction in range(4)}

Publish = Callable[..., AdapterRef]


def config(base: BaseModel, store: str = "", **engine: Any) -> Config:
    tree = {"kind": "simulated", "max_lora_rank": ENGINE_RANK, **engine}
    return Config.model_validate(
        {
            "model": {"path": str(base.path)},
            "env": {"window": 1},
            "learner": {"lora": {"rank": ENGINE_RANK, "vision": True}},
            "rollout": {"engine": tree},
            "checkpoint": {"url": store},
        }
    )


def same(groups: list[TrajectoryGroup]) -> list[TrajectoryGroup]:
    return sorted((replace(group, seconds=0.0) for group in groups), key=lambda group: group.seed)


async def test_a_service_of_it_plays_the_same_wherever_and_another_way_under_each_adapter(
    base: BaseModel, publish: Publish
) -> None:
    played: list[list[TrajectoryGroup]] = []
    adapter = publish(1)
    for _ in range(2):
        service = await start(config(base, store=str(Path(adapter.url).parents[1])))
        client = RolloutClient(service.address)
        for ref in (AdapterRef(0, "", "", "", base.fingerprint, 0), adapter):
            loaded = await client.load_adapter(ref)
            assert loaded.policy_version == ref.version
            task = replace(TASK, policy_version=ref.version)
            played.append(same([group async for group in client.rollout(task)]))
        assert await client.sleep()
        await client.wake()
        await client.close()
        await service.stop()
    bare, under_it = played[:2]
    assert played[2:] == [bare, under_it] and [g.trajectories for g in bare] != [g.trajectories for g in under_it]
    turns = [turn for group in bare + under_it for episode in group.trajectories for turn in episode.turns]
    assert {turn.text for turn in turns} == ACTIONS and all(turn.parsed for turn in turns)
    assert all(-2 < logprob < 0 for turn in turns for logprob in turn.rollout_logprobs)
    assert not any(episode.stop_reason.failed for group in bare for episode in group.trajectories)


async def test_times_are_spread_as_asked_and_a_function_of_the_seed(base: BaseModel) -> None:
    engine, other = (EngineSimulated(config(base, simulated={"turn_s": 2, "spread": 0.5}), base) for _ in range(2))
    times = [engine.seconds(seed) for seed in range(4000)]
    assert times == [other.seconds(seed) for seed in range(4000)]
    assert statistics.median(times) == pytest.approx(2, rel=0.05)
    cut = statistics.quantiles(times, n=100)
    assert cut[83] / cut[49] == pytest.approx(1.65, rel=0.1)  # one standard deviation of the logarithm: e^0.5


async def test_it_dies_as_an_engine_does(base: BaseModel) -> None:
    service = await start(config(base, simulated={"turn_s": 1000}))
    client, engine = RolloutClient(service.address), service.replica.engine
    assert isinstance(engine, EngineSimulated)

    async def play() -> None:
        async for _ in client.rollout(TASK):
            pass

    playing = asyncio.ensure_future(play())
    async with asyncio.timeout(20):
        while not (await client.status()).episodes_running:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        engine.kill()
        with pytest.raises(Unavailable):  # and not a group of failed episodes: others can play it
            await playing
        assert not (await client.status()).healthy
    await client.close()
    await service.stop()


async def test_it_has_a_context_and_a_deadline(base: BaseModel) -> None:
    engine = EngineSimulated(config(base, max_model_len=64, request_timeout_s=0.05, simulated={"turn_s": 9}), base)
    ids = base.chat.first_prompt("Go.", "", images=0)
    with pytest.raises(Unavailable, match="no answer within"):
        await engine.generate(Request(ids, (), Sampling(max_tokens=2), 1))
    with pytest.raises(ContextFull, match="max_model_len 64"):
        await engine.generate(Request(ids, (), Sampling(max_tokens=60), 1))


def test_it_starts_without_vllm(base: BaseModel, tmp_path: Path) -> None:
    script = (
        "import asyncio, sys\n"
        "from tandem.config import Config\n"
        "from tandem_rollout.main import start\n"
        f"config = Config.model_validate_json({config(base).model_dump_json()!r})\n"
        "async def main():\n"
        "    service = await start(config)\n"
        "    await service.stop()\n"
        "asyncio.run(main())\n"
        "assert not {'vllm', 'torch', 'transformers'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


async def test_a_service_records_what_it_plays_and_what_it_is_asked(base: BaseModel, scraper: Scraper) -> None:
    service = await start(config(base))
    client = RolloutClient(service.address)
    groups = [group async for group in client.rollout(replace(TASK, seeds=SEEDS[:2]), 60)]
    turns = [turn for group in groups for member in group.trajectories for turn in member.turns]
    found = await asyncio.to_thread(scraper.values)
    await client.close()
    await service.stop()
    assert sum(found[of.EPISODES.name].values()) == found[f"{of.EPISODE_TIME.name}_count"][()] == 8
    assert sum(found[of.TURNS.name].values()) == found[f"{of.TURN_TIME.name}_count"][()] == len(turns)
    assert found[of.TOKENS_GENERATED.name][()] == sum(len(turn.completion_ids) for turn in turns)
    assert found[f"{of.ENV_TIME.name}_count"] == {("reset",): 8, ("step",): len(turns)}
    assert (found[f"{of.GROUP_TIME.name}_count"][()], found[of.EPISODES_RUNNING.name][()]) == (2, 0)
    calls = found[f"{of.RPC_TIME.name}_count"]  # by code, method, side
    assert calls["OK", "RolloutService/Rollout", "server"] == calls["OK", "RolloutService/Rollout", "client"] == 1
    assert found[of.RPC_BYTES.name]["sent", "RolloutService/Rollout"] > 1000
