"""Loading a base model and its processor from a local folder."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from transformers import Qwen3VLForConditionalGeneration
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from tandem.model.chat import ChatFormat
from tandem.model.folder import model_folder
from tandem.types import UserError


def load_model(path: str | Path, dtype: torch.dtype = torch.float32) -> Qwen3VLForConditionalGeneration:
    """The base model in eval mode. Raises UserError where the folder holds no Qwen3-VL model."""
    folder = model_folder(path)
    try:
        kind = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("model_type")
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {folder / 'config.json'}: {error}") from error
    if kind != "qwen3_vl":
        raise UserError(f"{folder} holds a {kind!r} model; Tandem trains 'qwen3_vl' models")
    model = Qwen3VLForConditionalGeneration.from_pretrained(
        folder, dtype=dtype, attn_implementation="sdpa", local_files_only=True
    )
    return model.eval()


def load_processor(path: str | Path) -> Qwen2VLImageProcessorPil:
    """The image processor, the Pillow one: it needs no torchvision and gives the same numbers everywhere."""
    folder = model_folder(path)
    if not (folder / "preprocessor_config.json").is_file():
        raise UserError(f"{folder} has no preprocessor_config.json: the model folder is incomplete")
    return Qwen2VLImageProcessorPil.from_pretrained(folder, local_files_only=True)


def forbidden_token_ids(chat: ChatFormat, vocab_size: int) -> tuple[int, ...]:
    """Ids that are never sampled, and masked alike in the learner: see `ChatFormat.forbidden_ids`."""
    return chat.forbidden_ids(vocab_size)
