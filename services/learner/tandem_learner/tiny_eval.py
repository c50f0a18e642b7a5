"""Solve rates of a model without an engine: many episodes in lockstep, completions decoded token by token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tandem.algo.packing import TrainSequence
from tandem.envs import Env, make
from tandem.envs.protocol import Observation
from tandem.model.chat import ChatFormat
from tandem.model.pixels import image_pixels
from tandem.model.sequences import build_sequences, predicting_states
from tandem.model.tiny import GRID
from tandem.model.vision import EncodedImages, VisionEncoder


@dataclass(frozen=True, slots=True)
class Policy:
    """A model with what it takes to ask it: chat format, image processor, ids that are never sampled."""

    model: Any
    chat: ChatFormat
    processor: Any
    forbidden: tuple[int, ...]

    def see(self, images: Sequence[NDArray[np.uint8]]) -> EncodedImages:
        """Images through the tower, gradients included, named "0", "1" and so on: uint8 [H, W, 3], equal in size."""
        pixels, grid = image_pixels(self.processor, images)
        levels = VisionEncoder(self.model.model.visual, recompute=False)(pixels, grid)  # each [tokens, D]
        _, rows, columns = (grid[0] // self.model.model.visual.spatial_merge_size).tolist()
        names, tokens = [str(i) for i in range(len(images))], rows * columns
        return EncodedImages(
            grids=dict.fromkeys(names, (rows, columns)),
            token_rows={name: range(i * tokens, (i + 1) * tokens) for i, name in enumerate(names)},
            leaves=levels,
            outputs=(),
            cached=0,
        )


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
    images = policy.see([seen.images[0] for _, seen in states])
    size = (states[0][1].images[0].shape[0], states[0][1].images[0].shape[1])  # all are equal in size
    prompts = [
        GRID.expand(chat.first_prompt(env.instruction, seen.text, images=1), [size], chat.image_id)
        for env, seen in states
    ]
    done: list[tuple[int, ...]] = [()] * len(states)
    active = list(range(len(states)))
    for _ in range(max_tokens):
        so_far = [(*prompts[i], *done[i]) for i in active]
        rows = [  # the last id is a place to look at
            TrainSequence((*ids, chat.end_id), (str(i),), ((len(ids), len(ids) + 1),))
            for i, ids in zip(active, so_far, strict=True)
        ]
        batch = build_sequences(rows, images.grids, images.token_rows, chat.image_id, chat.end_id)
        now = policy.model.lm_head(predicting_states(policy.model, batch, images))  # [active, V]
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
