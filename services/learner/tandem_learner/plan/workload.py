"""How much there is to play and to learn from in a step, at the most: every episode takes all its turns."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from tandem.config import Config
from tandem.envs.registry import get_spec
from tandem.model.placeholders import TokenGrid
from tandem.types import UserError

# Qwen3-VL's own bounds of an image's area, px, where the model folder has no preprocessor_config.json
LEAST_AREA, MOST_AREA = 256 * 256, 4096 * 4096
SYSTEM_TOKENS, TURN_TOKENS = 128, 24  # the instruction; roles, markers and words around a turn's image and answer
UNKNOWN_IMAGE = 256  # merged tokens of an image whose environment is not installed here


@dataclass(frozen=True, slots=True)
class Workload:
    """tokens: of the longest transcript. image_tokens: merged tokens an image. images: of an episode. rows: training
    sequences of an episode. rows_at_once: of the largest microbatch. completion_tokens: of one row. episodes: of a
    step. note: what had to be guessed."""

    tokens: int
    image_tokens: int
    images: int
    rows: int
    rows_at_once: int
    completion_tokens: int
    episodes: int
    note: str

    @property
    def prompt_tokens(self) -> int:
        """Of all turns of an episode together, each turn with its whole prompt."""
        turns = self.images
        return self.tokens * (turns if self.rows > 1 else (turns + 1) // 2)


def imitates(config: Config) -> bool:
    """True for a recipe of `tandem sft`, which has no engines."""
    return config.learner.algo.supervised or config.learner.trainable == "full"


def workload(config: Config, token_side: int) -> Workload:
    """Of a recipe; `token_side` is a merged token's side in px."""
    env, rollout = config.env, config.rollout
    image_tokens, note = _image_tokens(config, token_side)
    if image_tokens >= rollout.engine.max_model_len:
        note = f"an image of {image_tokens} tokens does not fit rollout.engine.max_model_len; raise it"
    turn = env.images_per_turn * image_tokens + rollout.max_tokens + TURN_TOKENS
    seen = env.window or env.max_turns
    tokens = min(rollout.engine.max_model_len, SYSTEM_TOKENS + seen * turn)
    windowed = 0 < env.window < env.max_turns  # a window that slides starts a new training sequence each turn
    return Workload(
        tokens=tokens,
        image_tokens=image_tokens,
        images=env.max_turns * env.images_per_turn,
        rows=env.max_turns if windowed else 1,
        rows_at_once=max(1, config.learner.microbatch_tokens // tokens),
        completion_tokens=rollout.max_tokens * (1 if windowed else env.max_turns),
        episodes=config.sft.batch if imitates(config) else rollout.groups_per_step * rollout.group_size,
        note=note,
    )


def _image_tokens(config: Config, token_side: int) -> tuple[int, str]:
    """By the first observation of the environment."""
    folder = Path(config.model.path)
    grid = TokenGrid(token_side, LEAST_AREA, MOST_AREA)
    if (folder / "preprocessor_config.json").is_file():
        grid = TokenGrid.load(folder)
    try:
        env = get_spec(config.env.id).make()
        shapes = [image.shape for image in env.reset(0).images]
        env.close()
    except UserError as problem:
        return UNKNOWN_IMAGE, f"images are taken for {UNKNOWN_IMAGE} tokens each: {problem}"
    return max((math.prod(grid.of(shape[0], shape[1])) for shape in shapes), default=0), ""
