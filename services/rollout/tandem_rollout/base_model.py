"""What the service must know of the base model before an engine is started on it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from tandem.model.chat import ChatFormat
from tandem.model.folder import fingerprint, model_folder
from tandem.types import UserError

LANGUAGE_MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
VISION_MODULES = (
    "qkv",
    "linear_fc1",
    "linear_fc2",
)  # of blocks and mergers; beside them each block's attn.proj


@dataclass(frozen=True, slots=True)
class BaseModel:
    """A Qwen3-VL model in a local folder: `vocab_size` rows in the embedding, `vision_depth` blocks in the
    tower."""

    path: Path
    fingerprint: str
    chat: ChatFormat
    vocab_size: int
    vision_depth: int

    @property
    def forbidden_ids(self) -> tuple[int, ...]:
        """Ids that are never sampled; the learner masks the same."""
        return self.chat.forbidden_ids(self.vocab_size)

    def lora_modules(self, vision: bool) -> tuple[str, ...]:
        """Linear layers that may carry an adapter, as endings of their names; `vision` adds the tower's.
        Embedding and output head may not: room for an adapter there costs time at every step, used or not."""
        if not vision:
            return LANGUAGE_MODULES
        blocks = (f"visual.blocks.{block}.attn.proj" for block in range(self.vision_depth))
        return (*LANGUAGE_MODULES, *VISION_MODULES, *blocks)


def read_base_model(path: str | Path) -> BaseModel:
    """Look at a model folder. Raises UserError where it is missing, incomplete or no Qwen3-VL model."""
    folder = model_folder(path)
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        if config["model_type"] != "qwen3_vl":
            raise UserError(f"{folder} holds a {config['model_type']!r} model; Tandem serves 'qwen3_vl' models")
        vocab_size, depth = int(config["text_config"]["vocab_size"]), int(config["vision_config"]["depth"])
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise UserError(f"{folder / 'config.json'} is not the config of a Qwen3-VL model: {problem!r}") from problem
    return BaseModel(folder, fingerprint(folder), ChatFormat.load(folder), vocab_size, depth)
