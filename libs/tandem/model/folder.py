"""The folder of a base model, and its name by its contents. Without torch."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path

from tandem.types import UserError


def model_folder(path: str | Path) -> Path:
    """The folder of a model. Raises UserError where it, its config or its weights are missing."""
    folder = Path(path)
    if not folder.is_dir():
        raise UserError(f"model folder {folder} does not exist: give a local folder with config.json and safetensors")
    if not (folder / "config.json").is_file() or not list(folder.glob("*.safetensors")):
        raise UserError(f"{folder} is no model folder: it needs config.json and *.safetensors")
    return folder


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
