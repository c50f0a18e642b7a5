"""The real engine on the tiny model: ids and logprobs exactly as the learner will see them, adapters by
version."""

from __future__ import annotations

import asyncio
import io
import itertools
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from rollout_stub_engine import ENGINE_RANK as RANK

from tandem import envs
from tandem.envs import Observation, StepResult
from tandem.model.frames import Frame, FrameCache
from tandem.model.loading import load_model, load_processor
from tandem.types import (
    AdapterRef,
    ContextPolicy,
    DataCorrupt,
    FinishReason,
    RolloutTask,
    Sampling,
    Trajectory,
    Unavailable,
    UserError,
)
from tandem_rollout.adapters import AdapterRules, stage_adapter
from tandem_rollout.base_model import BaseModel
from tandem_rollout.core import Limits, Player
from tandem_rollout.engine import Completion, ContextFull, LocalAdapter, Request
from tandem_rollout.environments import EnvThreads
from tandem_rollout.replica import Bounds, Replica

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="session")]
Publish = Callable[..., AdapterRef]
Ids = tuple[int, ...]
TOLERANCE = 1e-4  # between the engine's and transformers' logprobs, float32


@dataclass(frozen=True)
class Reference:
    """transformers (and peft) on the same model: the learner's side."""

    model: Any
    processor: Any
    forbidden: tuple[int, ...]

    @torch.no_grad()
    def logprobs(self, prompt_ids: tuple[int, ...], completion: tuple[int, ...], pngs: list[bytes]) -> torch.Tensor:
        """float32 [completion]: forbidden ids masked, temperature 1."""
        images = [Image.open(io.BytesIO(png)).convert("RGB") for png in pngs]
        ids = torch.tensor([prompt_ids + completion])  # [1, L]
        pixels = self.processor(images=images, return_tensors="pt")
        image_id = self.model.config.image_token_id
        logits = self.model(input_ids=ids, mm_token_type_ids=(ids == image_id).int(), **pixels).logits[
            0, len(prompt_ids) - 1 : -1
        ]  # [T, V]
        logits[:, list(self.forbidden)] = float("-inf")
        return logits.log_softmax(-1).gather(-1, torch.tensor(completion)[:, None])[:, 0]


def reference(base: BaseModel, adapter: LocalAdapter | None = None) -> Reference:
    model: Any = load_model(base.path)
    if adapter is not None:
        from peft import PeftModel

        model = PeftModel.from_pretrained(model, str(adapter.folder)).eval()
    return Reference(model, load_processor(base.path), base.forbidden_ids)


class Scripted:
    """A real maze whose moves come from a script, since a random model's text never parses: walls are hit,
    moves made, nonsense said. The transcript holds the model's own tokens all the same."""

    SCRIPT = ("('move', 1)", "('move', 0)", "('move', 3)", "?", "('move', 2)")

    def __init__(self) -> None:
        self.inner = envs.make("maze2d:tiny")
        self.instruction = self.inner.instruction
        self.turn = 0

    def reset(self, seed: int) -> Observation:
        return self.inner.reset(seed)

    def step(self, completion_text: str) -> StepResult:
        self.turn += 1
        return self.inner.step(self.SCRIPT[self.turn % len(self.SCRIPT)])

    def close(self) -> None:
        self.inner.close()


async def play(
    engine: Any, base: BaseModel, sampling: Sampling, window: int = 0
) -> tuple[Trajectory, dict[str, bytes]]:
    player = Player(engine, base.chat, EnvThreads(lambda env: Scripted(), 60), Limits(8, 120, 14))
    task = RolloutTask("maze2d:tiny", (3,), 1, engine.policy_version, sampling, ContextPolicy(0), 14, 11)
    (group,) = [group async for group in player.play(task)]
    return group.trajectories[0], dict(group.images)


def frames(number: int) -> list[Frame]:
    rng, cache = np.random.default_rng(number), FrameCache()
    return [cache.frame(rng.integers(0, 256, (64, 64, 3), dtype=np.uint8)) for _ in range(number)]


def prompt(base: BaseModel, images: int = 1) -> tuple[int, ...]:
    observations = [("Moved.", 1)] * images
    return base.chat.window_prompt("Reach the red square.", observations, [(5, 6)] * (images - 1))


def check_parity(ref: Reference, made: Completion, pngs: list[bytes]) -> float:
    expected = ref.logprobs(made.prompt_ids, made.completion_ids, pngs)
    return float((expected - torch.tensor(made.logprobs)).abs().max())


async def test_transcript_is_exact_to_the_token_and_the_logprob(
    engine: Any, base: BaseModel, adapters: list[LocalAdapter]
) -> None:
    """14 turns with all their images: prompts grow by concatenation, images are where the ids say, and the
    logprobs are those of transformers + peft on the very ids that are handed on."""
    await engine.serve(adapters[0])
    trajectory, images = await play(engine, base, Sampling(max_tokens=6))
    ref = reference(base, adapters[0])
    assert len(trajectory.turns) == 14 and trajectory.error == ""
    feedbacks = {turn.feedback for turn in trajectory.turns}
    assert feedbacks == {"Moved.", "Hit a wall.", "Not understood."}
    for before, after in itertools.pairwise(trajectory.turns):
        start = before.prompt_ids + before.completion_ids
        assert after.prompt_ids[: len(start)] == start
        added = base.chat.next_turn(before.completion_ids, before.feedback, images=1)
        assert after.prompt_ids[len(start) :] == engine.expand(added, frames(1))
    worst = 0.0
    for turn in trajectory.turns:
        assert turn.prompt_ids.count(base.chat.image_id) == 16 * len(turn.images)
        expected = ref.logprobs(turn.prompt_ids, turn.completion_ids, [images[name] for name in turn.images])
        worst = max(worst, float((expected - torch.tensor(turn.rollout_logprobs)).abs().max()))
    assert worst < TOLERANCE
    assert any(turn.finish is FinishReason.LENGTH for turn in trajectory.turns)


class Album:
    """Turns of two images, none, one, of several sizes; its words name a special token."""

    SHAPES = (((64, 64, 3), (32, 96, 3)), (), ((48, 48, 3),))

    def __init__(self) -> None:
        self.instruction = "Look."

    def reset(self, seed: int) -> Observation:
        self.turn = 0
        return self._see("")

    def step(self, completion_text: str) -> StepResult:
        self.turn += 1
        return StepResult(self._see("More: <|image_pad|>"), 0.0, self.turn == 6, 0.0, True)

    def close(self) -> None: ...

    def _see(self, text: str) -> Observation:
        rng = np.random.default_rng(self.turn)
        shapes = self.SHAPES[self.turn % len(self.SHAPES)]
        return Observation(tuple(rng.integers(0, 256, shape, dtype=np.uint8) for shape in shapes), text)


async def test_turns_of_several_images_and_of_none_are_exact_too(
    engine: Any, base: BaseModel, adapters: list[LocalAdapter]
) -> None:
    await engine.serve(adapters[0])
    limits = Limits(8, 120, max_images=14, images_per_turn=2)
    player = Player(engine, base.chat, EnvThreads(lambda env: Album(), 60), limits)
    task = RolloutTask("maze2d:tiny", (3,), 1, engine.policy_version, Sampling(max_tokens=6), ContextPolicy(0), 6, 11)
    (group,) = [group async for group in player.play(task)]
    (trajectory,) = group.trajectories
    assert trajectory.error == "" and [len(turn.images) for turn in trajectory.turns] == [2, 2, 3, 5, 5, 6]
    ref = reference(base, adapters[0])
    for turn in trajectory.turns:
        pngs = [group.images[name] for name in turn.images]
        assert turn.prompt_ids.count(base.chat.image_id) == sum([16, 12, 9, 16, 12, 9][: len(pngs)])
        expected = ref.logprobs(turn.prompt_ids, turn.completion_ids, pngs)
        assert float((expected - torch.tensor(turn.rollout_logprobs)).abs().max()) < TOLERANCE


async def test_each_version_answers_for_itself_while_swapped_under_load(
    engine: Any, base: BaseModel, adapters: list[LocalAdapter]
) -> None:
    """Requests of three policies run side by side; each completion's logprobs are those of the version it
    names."""
    await engine.serve(None)
    pictures = frames(4)
    sampling = Sampling(max_tokens=24)
    running: list[asyncio.Task[tuple[int, Completion]]] = []

    async def ask(number: int) -> tuple[int, Completion]:
        picture = number % len(pictures)
        return picture, await engine.generate(Request(prompt(base), [pictures[picture]], sampling, number))

    for adapter in (*adapters, None):
        running += [asyncio.ensure_future(ask(len(running) + i)) for i in range(12)]
        await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED, timeout=0.05)
        await engine.serve(adapter)
    made = await asyncio.gather(*running)
    assert {completion.policy_version for _, completion in made} == {0, 1, 2}
    refs = {0: reference(base), 1: reference(base, adapters[0]), 2: reference(base, adapters[1])}
    for picture, completion in made:
        pngs = [pictures[picture].png]
        assert check_parity(refs[completion.policy_version], completion, pngs) < TOLERANCE
    picture, completion = made[0]
    others = [check_parity(refs[v], completion, [pictures[picture].png]) for v in (1, 2)]
    assert min(others) > 1e-2  # the policies do differ
    assert not await engine.llm.list_loras()


async def test_probe_tells_policies_apart_and_repeats(
    engine: Any, base: BaseModel, adapters: list[LocalAdapter]
) -> None:
    bare = await engine.serve(None)
    first, second = await engine.serve(adapters[0]), await engine.serve(adapters[1])
    assert len({bare, first, second}) == 3
    assert await engine.serve(adapters[0]) == pytest.approx(first, abs=1e-5)
    assert await engine.serve(None) == pytest.approx(bare, abs=1e-5)


async def test_adapters_that_are_refused(
    engine: Any, base: BaseModel, adapters: list[LocalAdapter], publish: Publish, tmp_path: Path
) -> None:
    """Each leaves the version served before in place."""
    await engine.serve(adapters[0])
    idle = stage_adapter(publish(7, scale=0.0, rank=RANK), AdapterRules(base, RANK, True), tmp_path)
    with pytest.raises(DataCorrupt, match="still that of the base model"):
        await engine.serve(LocalAdapter(7, "claims-to-act", idle.folder, idle.sha256, {"B": 0.1}))
    large = stage_adapter(publish(8, rank=2 * RANK), AdapterRules(base, 2 * RANK, True), tmp_path)
    with pytest.raises(UserError, match="refuses"):
        await engine.serve(large)
    assert engine.policy_version == 1 and engine.healthy
    made = await engine.generate(Request(prompt(base), frames(1), Sampling(max_tokens=4), 0))
    assert check_parity(reference(base, adapters[0]), made, [frames(1)[0].png]) < TOLERANCE
    assert await engine.serve(idle) == pytest.approx(await engine.serve(None), abs=1e-5)  # B = 0 is the base model


async def test_forbidden_ids_are_never_sampled(engine: Any, base: BaseModel) -> None:
    """4,096 draws at temperature 2 from a random model, of whose vocabulary more than 1% is forbidden."""
    await engine.serve(None)
    sampling = Sampling(temperature=2.0, max_tokens=64)
    picture = frames(1)
    made = await asyncio.gather(
        *(engine.generate(Request(prompt(base), picture, sampling, seed)) for seed in range(64))
    )
    drawn = [token for completion in made for token in completion.completion_ids]
    expected = len(drawn) * len(base.forbidden_ids) / base.vocab_size
    assert expected > 20 and not set(drawn) & set(base.forbidden_ids)
    assert all(c.completion_ids[-1] == base.chat.end_id for c in made if c.finish is FinishReason.STOP)


async def test_seeds_fix_the_draw_and_greedy_needs_none(engine: Any, base: BaseModel) -> None:
    await engine.serve(None)
    picture = frames(1)

    async def draw(seed: int, temperature: float = 1.0) -> tuple[int, ...]:
        sampling = Sampling(temperature=temperature, max_tokens=12)
        return (await engine.generate(Request(prompt(base), picture, sampling, seed))).completion_ids

    alone = await draw(2**63 - 1)
    crowd = await asyncio.gather(*(draw(seed) for seed in range(31)), draw(2**63 - 1))  # more than one step's tokens
    assert crowd[-1] == alone and len(set(crowd)) == 32
    assert await draw(1, temperature=0.0) == await draw(2, temperature=0.0)


async def test_prompts_are_checked(engine: Any, base: BaseModel) -> None:
    with pytest.raises(ValueError, match="1 image placeholders for 2 images"):
        await engine.generate(Request(prompt(base), frames(2), Sampling(), 0))
    with pytest.raises(ContextFull, match="max_model_len 1024"):
        await engine.generate(Request(prompt(base), frames(1), Sampling(max_tokens=1024), 0))
    text_only = base.chat.first_prompt("Reach the red square.", "", images=0)
    made = await engine.generate(Request(text_only, [], Sampling(max_tokens=4), 0))
    assert made.prompt_ids == text_only


async def test_images_of_several_sizes_and_repeats(engine: Any, base: BaseModel) -> None:
    """Placeholders follow each image's own size, in order, and a repeated image is the same image."""
    await engine.serve(None)
    cache, rng = FrameCache(), np.random.default_rng(5)
    shapes = [(64, 64, 3), (32, 96, 3), (48, 48, 3)]
    one, two, three = (cache.frame(rng.integers(0, 256, shape, dtype=np.uint8)) for shape in shapes)
    shown = [one, two, one, three, two]
    made = await engine.generate(Request(prompt(base, len(shown)), shown, Sampling(max_tokens=6), 3))
    tokens = [16, 12, 16, 9, 12]  # (height / 16) * (width / 16): patches of 8 px, merged 2 x 2
    runs = [len(list(run)) for token, run in itertools.groupby(made.prompt_ids) if token == base.chat.image_id]
    assert runs == tokens
    assert check_parity(reference(base), made, [frame.png for frame in shown]) < TOLERANCE


async def test_an_engine_that_stops_after_it_has_answered_others_fails_no_episode(
    engine: Any, base: BaseModel, tmp_path: Path
) -> None:
    """What a request's deadline then cuts off is none: the whole group is to be played elsewhere."""
    from tandem_rollout.engine_vllm.pulse import Pulse  # vLLM's environment stands now

    await engine.serve(None)
    player = Player(engine, base.chat, EnvThreads(envs.make, 60), Limits(8, 120, 14))
    replica = Replica(
        engine, player, AdapterRules(base, RANK, True), Bounds("maze2d:tiny", ()), str(tmp_path / "adapters")
    )
    task = RolloutTask("maze2d:tiny", (3,), 1, 0, Sampling(max_tokens=900), ContextPolicy(1), 1, 11)
    process = engine.llm.engine_core.resources.engine_manager.processes[0]
    lives, engine.pulse = engine.pulse, Pulse(engine.llm, 3.0)
    try:
        playing = asyncio.ensure_future(anext(replica.rollout(task)))
        while not replica.status().episodes_running:  # noqa: ASYNC110
            await asyncio.sleep(0)
        await engine.generate(Request(prompt(base), frames(1), Sampling(max_tokens=1), 0))
        assert not playing.done()
        os.kill(process.pid, signal.SIGSTOP)
        with pytest.raises(Unavailable, match="must be replaced"):
            await playing
        assert not engine.healthy and "answers nothing" in await engine.died()
    finally:
        os.kill(process.pid, signal.SIGCONT)
        engine.pulse = lives
    assert engine.healthy
