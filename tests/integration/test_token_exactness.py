"""What the engine saw is what the learner trains on: ids, images, pixels and, within rounding, logprobs.

One process holds both: the real engine under an adapter, and a learner restored from the same adapter.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
import torch
from PIL import Image
from safetensors.torch import save

from tandem import envs
from tandem.algo.packing import merge_turns
from tandem.config import Config
from tandem.envs import Observation, StepResult
from tandem.model.pixels import image_pixels
from tandem.storage.versions import VersionStore
from tandem.types import AdapterRef, ContextPolicy, FinishReason, PublishKind, RolloutTask, Sampling, TrajectoryGroup
from tandem_learner.comm import close_comm, open_comm, open_store
from tandem_learner.core import LearnerCore
from tandem_rollout.adapters import AdapterRules, stage_adapter
from tandem_rollout.base_model import read_base_model
from tandem_rollout.core import Limits, Player
from tandem_rollout.engine_vllm.environment import set_engine_environment
from tandem_rollout.environments import EnvThreads

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="module")]
MODEL = Path(__file__).parents[2] / "models/tiny-qwen3vl"
TURNS, TOLERANCE = 14, 1e-4  # nats, float32
CONFIG = Config.model_validate(
    {
        "model": {"path": str(MODEL)},
        "security": {"adapters_from": ["/"]},
        "env": {"window": 0, "max_turns": TURNS, "images_per_turn": 3},
        "learner": {"lora": {"rank": 8, "alpha": 16}, "algo": {"drop_zero_variance": False}, "lr": 1e-3},
        "rollout": {
            "group_size": 2,
            "max_tokens": 3,
            "temperature": 2.0,
            "engine": {"max_lora_rank": 8, "max_model_len": 2048, "kv_cache_gib": 0.25, "max_num_batched_tokens": 256},
        },
    }
)


class ManyImages:
    """A real maze whose moves come from a script (walls are hit, nonsense is said), seen in no, one or several
    images a turn, of different sizes, one of them again and again. The transcript holds the model's own tokens."""

    SCRIPT = ("('move', 1)", "('move', 0)", "('move', 3)", "?", "('move', 2)")
    MAP = np.random.default_rng(7).integers(0, 256, (32, 96, 3), dtype=np.uint8)

    def __init__(self) -> None:
        self.inner = envs.make("maze2d:tiny")
        self.instruction = self.inner.instruction
        self.turn = 0

    def reset(self, seed: int) -> Observation:
        return self.inner.reset(seed)

    def step(self, completion_text: str) -> StepResult:
        self.turn += 1
        result = self.inner.step(self.SCRIPT[self.turn % len(self.SCRIPT)])
        (frame,) = result.observation.images
        images = ((), (frame,), (frame, self.MAP), (self.MAP, frame[:48, :32], frame))[self.turn % 4]
        return replace(result, observation=replace(result.observation, images=images), reward=self.turn / 10)

    def close(self) -> None:
        self.inner.close()


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[AdapterRef, LearnerCore]]:
    """A published adapter that acts, and the learner that has it."""
    comm = open_comm(CONFIG, 0, 1, open_store(0, 1, "", 30))
    core = LearnerCore(CONFIG, comm)
    generator = torch.Generator().manual_seed(0)
    weights = {
        name: torch.randn(p.shape, generator=generator) * (0.3 if "lora_B" in name else 0.1)
        for name, p in core.policy.parameters.items()
    }
    files = {"adapter_config.json": [core.adapter_config_json.encode()], "adapter_model.safetensors": [save(weights)]}
    store = VersionStore(str(tmp_path_factory.mktemp("store")))
    ref = store.commit(PublishKind.ADAPTER, 1, core.base_model, files, {})
    core.restore(ref, None)
    yield ref, core
    close_comm()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(
    adapter: tuple[AdapterRef, LearnerCore], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Any]:
    set_engine_environment()
    from tandem_rollout.engine_vllm.engine import EngineVllm

    base = read_base_model(str(MODEL))
    started = await EngineVllm.start(CONFIG, base, seed=0)
    rules = AdapterRules(base, 8, vision=False)
    await started.serve(stage_adapter(adapter[0], rules, tmp_path_factory.mktemp("staged")))
    yield started
    await started.close()


async def play(engine: Any, window: int) -> TrajectoryGroup:
    limits = Limits(8, 120, CONFIG.env.max_images, images_per_turn=3)
    player = Player(engine, engine.chat, EnvThreads(lambda env: ManyImages(), 60), limits)
    task = RolloutTask("maze2d:tiny", (3,), 2, 1, Sampling(2.0, max_tokens=3), ContextPolicy(window), TURNS, 11)
    (group,) = [group async for group in player.play(task)]
    return group


@pytest.mark.parametrize("window", [0, 1, 3])
async def test_training_sequences_hold_the_engines_ids(engine: Any, window: int) -> None:
    """Every id, in order: prompts, completions, placeholders as many as each image takes. A transcript that grows is
    one sequence; a window that moves starts a new one."""
    group = await play(engine, window)
    for trajectory in group.trajectories:
        turns = trajectory.turns
        assert len(turns) == TURNS and trajectory.error == ""
        merged = [sequence for sequence, _ in merge_turns(turns)]
        ends = itertools.chain.from_iterable([(sequence, span) for span in sequence.spans] for sequence in merged)
        for turn, (sequence, (start, stop)) in zip(turns, ends, strict=True):
            assert sequence.ids[:start] == turn.prompt_ids
            assert sequence.ids[start:stop] == turn.completion_ids
            assert sequence.images[: len(turn.images)] == turn.images
        assert len(merged) == {0: 1, 1: TURNS, 3: TURNS - 2}[window]
    turns = group.trajectories[0].turns
    assert {turn.feedback for turn in turns} == {"Moved.", "Hit a wall.", "Not understood."}
    assert {turn.finish for turn in turns} == {FinishReason.STOP, FinishReason.LENGTH}
    assert len(set(turns[-1].images)) < len(turns[-1].images) or window  # an image that comes again


async def test_images_are_processed_alike(engine: Any, adapter: tuple[AdapterRef, LearnerCore]) -> None:
    """Grid sizes and every pixel value, of each image shown. The engine is handed bytes, which its model normalises."""
    group = await play(engine, 0)
    processor, shapes = adapter[1].settings.processor, set()
    mean, std = processor.image_mean[0], processor.image_std[0]  # alike in all channels
    for name, png in group.images.items():
        prompt: dict[str, Any] = {
            "prompt_token_ids": [engine.chat.image_id],
            "multi_modal_data": {"image": [Image.open(io.BytesIO(png))]},
            "multi_modal_uuids": {"image": [name]},
        }
        (rendered,) = engine.llm.renderer.render_cmpl([prompt], skip_mm_cache=True)
        seen = rendered["mm_kwargs"]["image"][0].get_data()
        pixels, grid = image_pixels(processor, [png])
        assert torch.equal(seen["image_grid_thw"].view(1, 3), grid)
        assert seen["pixel_values"].dtype == torch.uint8
        assert torch.equal(((pixels * std + mean) * 255).round().to(torch.uint8), seen["pixel_values"])
        shapes.add(tuple(grid[0].tolist()))
    assert len(shapes) == 3


@pytest.mark.parametrize("window", [0, 1, 3])
async def test_learner_logprobs_are_the_engines(
    engine: Any, adapter: tuple[AdapterRef, LearnerCore], window: int
) -> None:
    """The learner's whole step on the group, its own gap metric included."""
    ref, core = adapter
    group = await play(engine, window)
    core.restore(ref, None)
    figures = core.train_step([group])
    sampled = sum(len(turn.completion_ids) for t in group.trajectories for turn in t.turns)
    assert figures["tokens"] == sampled and figures["updates"] == 1
    assert 0 < figures["rollout_learner_logprob_gap_max"] < TOLERANCE
    assert figures["images"] == len(group.images)
