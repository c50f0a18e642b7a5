"""The real engine under an adapter that the ranks sent: the same policy as from the store, and the probe shows it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from rollout_shards import pushed, shards, unknown
from rollout_stub_engine import ENGINE_RANK

from tandem.config import Config
from tandem.model.frames import Frame, FrameCache
from tandem.types import AdapterRef, DataCorrupt, Pushed, Sampling
from tandem_rollout.base_model import BaseModel
from tandem_rollout.engine import Completion, LocalAdapter, Request
from tandem_rollout.main import build_replica
from tandem_rollout.replica import Replica

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="session")]
Publish = Callable[..., AdapterRef]
BASE = AdapterRef(0, "", "", "", "", 0)


@pytest_asyncio.fixture(loop_scope="session")
async def replica(engine: Any, base: BaseModel, tmp_path: Path) -> AsyncIterator[Replica]:
    """A replica around the engine that all tests share: it outlives the replica."""
    config = Config.model_validate(
        {
            "model": {"path": str(base.path)},
            "learner": {"lora": {"vision": True, "rank": ENGINE_RANK}},
            "rollout": {"engine": {"max_lora_rank": ENGINE_RANK}},
            "sync": {"folder": str(tmp_path)},
            "security": {"adapters_from": ["/"]},
        }
    )
    await engine.serve(None)
    built = build_replica(config, engine, base)
    yield built
    await engine.serve(None)
    await built.player.close()


async def push(replica: Replica, ref: AdapterRef, world_size: int = 2) -> Pushed:
    for shard in shards(ref, world_size):
        with replica.receive(shard.ref) as receiving:
            for chunk in shard.chunks():
                receiving.write(chunk)
    return pushed(ref, world_size)


async def greedy(engine: Any, base: BaseModel) -> list[Completion]:
    """Greedy completions of a few prompts with different images."""
    rng, cache = np.random.default_rng(7), FrameCache()
    frames: list[Frame] = [cache.frame(rng.integers(0, 256, (64, 64, 3), dtype=np.uint8)) for _ in range(6)]
    prompt = base.chat.window_prompt("Reach the red square.", [("Moved.", 1)], [])
    sampling = Sampling(temperature=0.0, max_tokens=16)
    # one by one: the batches are the same both times, so that every bit can be
    return [await engine.generate(Request(prompt, [frame], sampling, 0)) for frame in frames]


async def test_both_transports_serve_the_same_bytes_and_the_same_greedy_tokens(
    engine: Any, base: BaseModel, publish: Publish, replica: Replica
) -> None:
    one = publish(1, rank=ENGINE_RANK)
    from_store = await replica.load(one)
    stored = {path.name: path.read_bytes() for path in replica._adapter.folder.iterdir()}  # type: ignore[union-attr]
    said = await greedy(engine, base)
    bare = await replica.load(BASE)
    assert [made.completion_ids for made in await greedy(engine, base)] != [made.completion_ids for made in said]
    sent = await replica.load(unknown(one), await push(replica, one))
    joined = {path.name: path.read_bytes() for path in replica._adapter.folder.iterdir()}  # type: ignore[union-attr]
    again = await greedy(engine, base)
    assert joined["adapter_config.json"] == stored["adapter_config.json"] and set(joined) == set(stored)
    assert [(made.completion_ids, made.logprobs) for made in again] == [(m.completion_ids, m.logprobs) for m in said]
    assert sent.probe_logprob == pytest.approx(from_store.probe_logprob, abs=1e-6)
    assert abs(sent.probe_logprob - bare.probe_logprob) > 1e-3


@pytest.mark.parametrize("largest", [1e-3, 1e-1])
async def test_the_least_adapter_that_must_act_shows(
    engine: Any, base: BaseModel, publish: Publish, replica: Replica, largest: float
) -> None:
    """B matrices of entries up to the bound from where on the probe must show them."""
    bare = await replica.load(BASE)
    ref = publish(1, scale=largest / 5, rank=ENGINE_RANK)
    loaded = await replica.load(unknown(ref), await push(replica, ref))
    assert max(replica._adapter.largest_b.values()) < largest  # type: ignore[union-attr]
    assert abs(loaded.probe_logprob - bare.probe_logprob) > 1e-5


async def test_an_engine_that_serves_something_else_is_found_out(
    engine: Any, base: BaseModel, publish: Publish, replica: Replica
) -> None:
    """It answers as the base model, or as under the version before; what was served stays served."""
    one, two = publish(1, rank=ENGINE_RANK), publish(2, rank=ENGINE_RANK)
    idle = publish(3, scale=0.0, rank=ENGINE_RANK)
    adapters: list[LocalAdapter] = []
    for ref in (two, one):
        await replica.load(unknown(ref), await push(replica, ref))
        assert replica._adapter is not None
        adapters.append(replica._adapter)
    second, first = adapters
    # names of their own: vLLM keeps by name what a tower with an adapter has made of an image
    as_before = replace(second, name="second", folder=first.folder)
    with pytest.raises(DataCorrupt, match=f"adapter second: loaded, but the policy is still that of {first.name}"):
        await engine.serve(as_before)
    assert engine.policy_version == 1
    await replica.load(idle)
    assert replica._adapter is not None
    as_base = replace(second, name="acts", folder=replica._adapter.folder)
    with pytest.raises(DataCorrupt, match="loaded, but the policy is still that of the base model"):
        await engine.serve(as_base)
    assert engine.policy_version == 3 and engine.healthy


@pytest.mark.parametrize("other", ["the base model", "v1"])
async def test_what_rounding_can_swallow_is_no_proof(other: str, caplog: pytest.LogCaptureFixture) -> None:
    from tandem_rollout.engine_vllm import probe

    new = probe.Policy("v2", {"B": 1.5e-3}, (-1.0, -2.0))
    before = probe.Policy(other, {} if other != "v1" else {"B": 5e-4}, new.logprobs)
    with pytest.raises(DataCorrupt, match=f"v2: loaded, but the policy is still that of {other}"):
        probe.check_acts(new, [before], "float32")
    probe.check_acts(new, [before], "bfloat16")
    assert f"still that of {other}, as far as the probe's logprobs tell in bfloat16" in caplog.text
