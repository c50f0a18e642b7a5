"""A tiny untrained model, and rank processes to talk to."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # helper modules beside the tests


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of an untrained tiny Qwen3-VL."""
    from tandem.model.tiny import build_tiny
    from tandem_learner.sft_data import tokenizer_texts

    folder = tmp_path_factory.mktemp("model") / "tiny"
    build_tiny(folder, tokenizer_texts(), seed=0)
    return folder
