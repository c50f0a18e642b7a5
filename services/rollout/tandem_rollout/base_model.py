"""What the service must know of the base model before an engine is started on it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from tandem.model.chat import ChatFormat
from tandem.model.loading import fingerprint, model_folder
from tandem.types import UserError


@dataclass(frozen=True, slots=True)
class BaseModel:
    """A Qwen3-VL model in a local folder. `vocab_size` counts the embedding's rows, `vision_depth` the tower's blocks."""

    path: Path
    fingerprint: str
    chat: ChatFormat
    vocab_size: int
    vision_depth: int

    @property
    def forbidden_ids(self) -> tuple[int, ...]:
        """Ids that are never sampled; the learner masks the same."""
        return self.chat.forbidden_ids(self.vocab_size)


def read_base_model(path: str | Path) -> BaseModel:
    """Look at a model folder. Raises UserError where it is missing, incomplete or holds another kind of model."""
    folder = model_folder(path)
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        if config["model_type"] != "qwen3_vl":
            raise UserError(f"{folder} holds a {config['model_type']!r} model; Tandem serves 'qwen3_vl' models")
        vocab_size, depth = int(config["text_config"]["vocab_size"]), int(config["vision_config"]["depth"])
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise UserError(f"{folder / 'config.json'} is not the config of a Qwen3-VL model: {problem!r}") from problem
    return BaseModel(folder, fingerprint(folder), ChatFormat.load(folder), vocab_size, depth)
