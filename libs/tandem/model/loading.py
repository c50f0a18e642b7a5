"""Loading a base model and its processor from a local folder, and naming it by its contents."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from pathlib import Path

import torch
from transformers import Qwen3VLForConditionalGeneration
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from tandem.model.chat import ChatFormat
from tandem.types import UserError


def model_folder(path: str | Path) -> Path:
    """The folder of a model. Raises UserError where it, its config or its weights are missing."""
    folder = Path(path)
    if not folder.is_dir():
        raise UserError(f"model folder {folder} does not exist: give a local folder with config.json and safetensors")
    if not (folder / "config.json").is_file() or not list(folder.glob("*.safetensors")):
        raise UserError(f"{folder} is no model folder: it needs config.json and *.safetensors")
    return folder


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


def fingerprint(path: str | Path) -> str:
    """sha256 over config and weights: names the base model an adapter belongs to. Cached by path, size and time."""
    folder = model_folder(path)
    files = sorted([folder / "config.json", *folder.glob("*.safetensors")])
    stamp = tuple((str(f.resolve()), f.stat().st_size, f.stat().st_mtime_ns) for f in files)
    return _fingerprint(stamp)


@lru_cache(maxsize=16)
def _fingerprint(stamp: tuple[tuple[str, int, int], ...]) -> str:
    whole = hashlib.sha256()
    for name, size, _ in stamp:
        whole.update(f"{Path(name).name}:{size}\n".encode())
        with open(name, "rb") as file:
            while block := file.read(1 << 22):
                whole.update(block)
    return whole.hexdigest()
