"""The other way round: one of our environments as a `gymnasium.Env`, for other people's tools. Needs tandem[gym]."""

from __future__ import annotations

import string
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from tandem.envs.protocol import Observation
from tandem.envs.registry import make

CHARACTERS = string.printable
LONGEST = 4096  # characters of an action or an observation


def as_gymnasium(env_id: str) -> gymnasium.Env[Any, str]:
    """The environment of an id: actions are texts, observations the first image, uint8 [H, W, 3], or else the text.

    The text that goes with an image is `info["text"]`, the bare task's reward `info["task_reward"]`.
    """
    return _AsGymnasium(env_id)


class _AsGymnasium(gymnasium.Env[Any, str]):
    metadata = {"render_modes": ["rgb_array"], "render_fps": 4}  # noqa: RUF012 - gymnasium's way

    def __init__(self, env_id: str) -> None:
        self.env = make(env_id)
        self.render_mode = "rgb_array"
        self.action_space = spaces.Text(LONGEST, min_length=0, charset=CHARACTERS)
        self._seen = self.env.reset(0)
        self.observation_space = (
            spaces.Box(0, 255, self._seen.images[0].shape, np.uint8)
            if self._seen.images
            else spaces.Text(LONGEST, min_length=0, charset=CHARACTERS)
        )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._seen = self.env.reset(int(self.np_random.integers(2**31)) if seed is None else seed)
        return _shown(self._seen), {"text": self._seen.text, "instruction": self.env.instruction}

    def step(self, action: str) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        result = self.env.step(action)
        self._seen = result.observation
        truncated = result.terminated and bool(result.info.get("out_of_turns"))
        info = {**result.info, "text": self._seen.text, "task_reward": result.task_reward}
        return _shown(self._seen), result.reward, result.terminated and not truncated, truncated, info

    def render(self) -> Any:
        return self._seen.images[0] if self._seen.images else None

    def close(self) -> None:
        self.env.close()


def _shown(seen: Observation) -> Any:
    return np.array(seen.images[0]) if seen.images else seen.text
