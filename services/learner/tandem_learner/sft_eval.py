"""Solve rates of a model without an engine: many episodes in lockstep, completions decoded token by token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tandem.envs import Env, make
from tandem.envs.protocol import Observation
from tandem.model.chat import ChatFormat
from tandem.model.fast_vision import image_features
from tandem.model.logprobs import Row, build_batch, completion_logits
from tandem.model.pixels import image_pixels
from tandem_learner.sft_data import expand


@dataclass(frozen=True, slots=True)
class Policy:
    """A model with what it takes to ask it: chat format, image processor, ids that are never sampled."""

    model: Any
    chat: ChatFormat
    processor: Any
    forbidden: tuple[int, ...]


@torch.no_grad()
def solve_rate(
    policy: Policy,
    env_id: str,
    seeds: Sequence[int],
    temperature: float,
    rng_seed: int = 0,
    max_tokens: int = 6,
) -> float:
    """Share of seeds solved, the context being the last turn alone. Temperature 0 is greedy."""
    generator = torch.Generator().manual_seed(rng_seed)
    envs = [make(env_id) for _ in seeds]
    seen = [env.reset(seed) for env, seed in zip(envs, seeds, strict=True)]
    running, solved = list(range(len(envs))), 0
    while running:
        texts = _complete(policy, [(envs[i], seen[i]) for i in running], temperature, generator, max_tokens)
        still = []
        for i, text in zip(running, texts, strict=True):
            result = envs[i].step(text)
            seen[i] = result.observation
            solved += int(result.task_reward >= 1.0)
            if not result.terminated:
                still.append(i)
        running = still
    return solved / len(seeds)


def _complete(
    policy: Policy,
    states: Sequence[tuple[Env, Observation]],
    temperature: float,
    generator: torch.Generator,
    max_tokens: int,
) -> list[str]:
    """One completion per state."""
    chat = policy.chat
    frames = [seen.images[0] for _, seen in states]
    pixels, grid = image_pixels(policy.processor, frames)
    features = image_features(policy.model.model.visual, pixels, grid)
    prompts = [expand(chat, chat.first_prompt(env.instruction, seen.text, images=1)) for env, seen in states]
    done: list[tuple[int, ...]] = [()] * len(states)
    side = (int(grid[0, 1]) // 2, int(grid[0, 2]) // 2)
    active = list(range(len(states)))
    for _ in range(max_tokens):
        rows = [Row(prompts[i], (*done[i], chat.end_id), (i,)) for i in active]  # the last id is a place to look at
        batch = build_batch(rows, [side] * len(states), chat.image_id, chat.end_id)
        logits = completion_logits(policy.model, batch, features)
        last = torch.tensor([len(done[i]) for i in active])
        now = logits[torch.arange(len(active)), last]  # [active, V]
        now[:, list(policy.forbidden)] = float("-inf")
        chosen = now.argmax(-1)
        if temperature > 0:
            chosen = torch.multinomial((now / temperature).softmax(-1), 1, generator=generator).squeeze(-1)
        for i, token in zip(active, chosen.tolist(), strict=True):
            done[i] = (*done[i], token)
        active = [i for i in active if done[i][-1] != chat.end_id]
        if not active:
            break
    return [chat.decode(ids) for ids in done]
