"""Real Maze2D episodes of a random policy: what a rollout replica sends, but for the engine's logprobs."""

from __future__ import annotations

import hashlib
import io
import math
from pathlib import Path

import numpy as np
from PIL import Image

from tandem.envs import make, seeds
from tandem.envs.maze2d import action_text
from tandem.model.chat import ChatFormat
from tandem.types import FinishReason, StopReason, Trajectory, TrajectoryGroup, Turn

IMAGE_TOKENS = 16  # a 64 x 64 image of maze2d:tiny


def play_groups(
    model: str | Path,
    *,
    groups: int,
    group_size: int = 8,
    window: int = 1,
    max_turns: int = 7,
    start: int = 0,
) -> list[TrajectoryGroup]:
    """Groups of `maze2d:tiny`. A little random reward every turn makes returns differ."""
    chat = ChatFormat.load(model)
    rng = np.random.default_rng(start)
    return [
        _play_group(chat, seed, group_size, window, max_turns, rng)
        for seed in seeds("maze2d:tiny", "train", groups, start)
    ]


def _play_group(
    chat: ChatFormat, seed: int, group_size: int, window: int, max_turns: int, rng: np.random.Generator
) -> TrajectoryGroup:
    images: dict[str, bytes] = {}
    trajectories = tuple(_play(chat, seed, member, window, max_turns, images, rng) for member in range(group_size))
    return TrajectoryGroup(f"g{seed}", "maze2d:tiny", seed, 0, trajectories, images)


def _play(
    chat: ChatFormat,
    seed: int,
    member: int,
    window: int,
    max_turns: int,
    images: dict[str, bytes],
    rng: np.random.Generator,
) -> Trajectory:
    env = make(f"maze2d:tiny?max_moves={max_turns}")
    seen = [env.reset(seed)]
    names, turns = [_keep(seen[0].images[0], images)], []
    task_reward, over = 0.0, False
    while not over:
        first = max(0, len(seen) - window) if window else 0
        prompt = chat.window_prompt(
            env.instruction, [(o.text, 1) for o in seen], [turn.completion_ids for turn in turns], window
        )
        completion = (*chat.encode(action_text(int(rng.integers(4)))), chat.end_id)
        result = env.step(chat.decode(completion))
        seen.append(result.observation)
        task_reward, over = result.task_reward, result.terminated
        turns.append(
            Turn(
                prompt_ids=expand(prompt, chat.image_id),
                completion_ids=completion,
                rollout_logprobs=tuple(math.log(0.3) for _ in completion),
                images=tuple(names[first:]),
                policy_version=0,
                text=chat.decode(completion),
                feedback=result.feedback,
                reward=result.reward + 0.01 * float(rng.integers(3)),
                finish=FinishReason.STOP,
            )
        )
        names.append(_keep(result.observation.images[0], images))
    stop = StopReason.TERMINATED if task_reward else StopReason.TURN_LIMIT
    return Trajectory(member, tuple(turns), stop, task_reward)


def expand(prompt: tuple[int, ...], image_id: int) -> tuple[int, ...]:
    """One placeholder a token of the image, as the engine reports prompts."""
    return tuple(i for token in prompt for i in ([token] * IMAGE_TOKENS if token == image_id else [token]))


def _keep(image: np.ndarray, images: dict[str, bytes]) -> str:
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG")
    name = hashlib.sha256(buffer.getvalue()).hexdigest()
    images[name] = buffer.getvalue()
    return name
