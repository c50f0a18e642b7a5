"""The shipped folder: whole, small, loadable, and named by its contents."""

import json
import shutil
from pathlib import Path

import pytest
from transformers import Qwen3VLForConditionalGeneration

from tandem.model.chat import ChatFormat
from tandem.model.folder import fingerprint
from tandem.model.loading import forbidden_token_ids, load_model, load_processor
from tandem.model.tiny import SPECIAL_TOKENS, build_tiny
from tandem.types import UserError

MODEL = Path(__file__).parents[3] / "models" / "tiny-qwen3vl"


def test_it_is_a_small_qwen3_vl():
    model, chat = load_model(MODEL), ChatFormat.load(MODEL)
    assert isinstance(model, Qwen3VLForConditionalGeneration)
    assert sum(file.stat().st_size for file in MODEL.iterdir()) <= 10 * 2**20
    assert model.lm_head.out_features == chat.tokenizer.get_vocab_size()
    assert model.config.image_token_id == chat.image_id
    assert all(chat.tokenizer.token_to_id(token) is not None for token in SPECIAL_TOKENS)
    assert len(forbidden_token_ids(chat, model.lm_head.out_features)) == 5


def test_its_card_quotes_its_records():
    card = (MODEL / "CARD.md").read_text(encoding="utf-8")
    for kind in ("pretrain", "narrow"):
        figures = json.loads((MODEL / f"{kind}.json").read_text(encoding="utf-8"))["figures"]
        assert f"{round(figures['fixed_greedy'] * 64)} of 64" in card
    assert 26 <= round(figures["fixed_greedy"] * 64) <= 30


def test_fingerprint_follows_the_contents(tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(MODEL, copy)
    assert fingerprint(copy) == fingerprint(MODEL)
    config = json.loads((copy / "config.json").read_text(encoding="utf-8"))
    (copy / "config.json").write_text(json.dumps({**config, "note": 1}), encoding="utf-8")
    assert fingerprint(copy) != fingerprint(MODEL)


def test_building_is_reproducible(tmp_path):
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        build_tiny(tmp_path / name, ["Reach the red square.", "('move', 0)"], seed)
    assert fingerprint(tmp_path / "a") == fingerprint(tmp_path / "b") != fingerprint(tmp_path / "c")
    assert (tmp_path / "a" / "tokenizer.json").read_bytes() == (tmp_path / "b" / "tokenizer.json").read_bytes()


def test_bad_folders_are_user_errors(tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        load_model(tmp_path / "missing")
    with pytest.raises(UserError, match="no model folder"):
        load_model(tmp_path)
    shutil.copytree(MODEL, tmp_path / "m")
    (tmp_path / "m" / "preprocessor_config.json").unlink()
    with pytest.raises(UserError, match="preprocessor_config"):
        load_processor(tmp_path / "m")
    (tmp_path / "m" / "config.json").write_text('{"model_type": "llama"}', encoding="utf-8")
    with pytest.raises(UserError, match="llama"):
        load_model(tmp_path / "m")
