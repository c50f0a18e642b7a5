"""Training sequences through the real model: logprobs, images encoded once, LoRA by PEFT's names."""

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
import safetensors.torch
import torch
from PIL import Image
from torch.testing import assert_close

from tandem.algo.packing import TrainSequence
from tandem.config import LoraConfig
from tandem.model.chat import ChatFormat
from tandem.model.loading import load_model, load_processor
from tandem.model.lora import adapter_config_json, adapter_parameters, attach_lora, base_policy
from tandem.model.pixels import image_pixels
from tandem.model.sequences import build_sequences, sequence_logprobs
from tandem.model.tiny import build_tiny
from tandem.model.vision import EncodedImages, ImageCache, VisionEncoder, encode_images, image_cache, token_grid
from tandem.types import UserError

TEXT = r".*language_model.*\.(q_proj|v_proj|down_proj)"
BOTH = r".*(language_model.*\.(q_proj|v_proj|down_proj)|visual.*\.(qkv|linear_fc1|linear_fc2))"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("tiny")
    build_tiny(out, ["Reach the red square.", "Moved.", "('move', 0)", "user\n", "assistant\n"], seed=0)
    return out


@pytest.fixture(scope="module")
def chat(folder: Path) -> ChatFormat:
    return ChatFormat.load(folder)


def _load(folder: Path) -> Any:
    return load_model(folder)


def _png(seed: int, height: int = 64, width: int = 64) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 255, (height, width, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


PNGS = {"a": _png(0), "b": _png(1), "wide": _png(2, 32, 96), "c": _png(3)}
TOKENS = {"a": 16, "b": 16, "wide": 12, "c": 16}


def _transcript(chat: ChatFormat, images: list[str], seed: int) -> TrainSequence:
    """A transcript of as many turns as images, each answered by three random ids."""
    rng = np.random.default_rng(seed)
    ids: tuple[int, ...] = ()
    spans = []
    for image in images:
        turn = chat.user_ids("Moved.", True)
        ids += tuple(i for t in turn for i in ([t] * TOKENS[image] if t == chat.image_id else [t]))
        completion = tuple(int(i) for i in rng.integers(0, 200, 3))
        spans.append((len(ids), len(ids) + 3))
        ids += completion
    return TrainSequence(ids, tuple(images), tuple(spans))


def _encode(model: Any, folder: Path, trainable: bool, chunk_patches: int = 10_000) -> EncodedImages:
    return encode_images(
        VisionEncoder(model.model.visual, recompute=False),
        load_processor(folder),
        PNGS,
        trainable=trainable,
        chunk_patches=chunk_patches,
        device=torch.device("cpu"),
    )


def _logprobs(
    model: Any, chat: ChatFormat, rows: list[TrainSequence], images: EncodedImages, **settings: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    batch = build_sequences(rows, images.grids, images.token_rows, chat.image_id, chat.end_id)
    settings = {"temperature": 1.0, "forbidden": torch.tensor([], dtype=torch.int64), **settings}
    return sequence_logprobs(model, batch, images, **settings)


def test_every_turn_has_the_logprobs_of_its_own_prompt(folder: Path, chat: ChatFormat) -> None:
    """One sequence of several turns, padded beside others, gives what transformers gives each turn's prompt."""
    model = _load(folder)
    rows = [
        _transcript(chat, ["a", "wide", "b", "a"], 0),
        _transcript(chat, ["c"], 1),
        _transcript(chat, ["wide", "wide"], 2),
    ]
    forbidden = chat.forbidden_ids(model.get_input_embeddings().num_embeddings)
    with torch.no_grad():
        images = _encode(model, folder, trainable=False)
        found, entropy = _logprobs(model, chat, rows, images, temperature=0.7, forbidden=torch.tensor(forbidden))
        expected = []
        for row in rows:
            for turn, (start, stop) in enumerate(row.spans):
                pngs = [PNGS[name] for name in row.images[: turn + 1]]
                pixels, grid_thw = image_pixels(load_processor(folder), pngs)
                ids = torch.tensor([row.ids[:stop]])
                logits = model(
                    input_ids=ids,
                    pixel_values=pixels,
                    image_grid_thw=grid_thw,
                    mm_token_type_ids=(ids == chat.image_id).int(),
                ).logits[0, start - 1 : stop - 1]
                logits = (logits / 0.7).index_fill(-1, torch.tensor(forbidden), float("-inf"))
                expected.append(logits.log_softmax(-1).gather(-1, ids[0, start:stop, None])[:, 0])
    assert_close(found, torch.cat(expected), rtol=0, atol=1e-5)
    assert bool((entropy > 0).all())


@pytest.mark.parametrize("most_logits", [1, 3000])
def test_head_in_parts_changes_nothing(folder: Path, chat: ChatFormat, most_logits: int) -> None:
    """A token at a time, and some at a time: logprobs, entropies and gradients of both."""
    found = []
    for most in (2**27, most_logits):
        model = _load(folder)
        attach_lora(model, LoraConfig(rank=4, target_modules=TEXT), seed=0)
        images = _encode(model, folder, trainable=False)
        rows = [_transcript(chat, ["a", "b"], 0), _transcript(chat, ["c"], 1)]
        logprobs, entropy = _logprobs(model, chat, rows, images, entropy_gradient=True, most_logits=most)
        (logprobs.sum() - 2 * entropy.sum()).backward()
        gradients = [p.grad for p in adapter_parameters(model).values() if p.grad is not None]
        assert any(gradient.any() for gradient in gradients)
        found.append([logprobs.detach(), entropy.detach(), *gradients])
    for left, right in zip(*found, strict=True):
        assert_close(left, right, rtol=1e-3, atol=1e-5)


def test_entropy_has_a_gradient_only_on_request(folder: Path, chat: ChatFormat) -> None:
    """And a finite one, with ids forbidden: their probability is zero."""
    model = _load(folder)
    attach_lora(model, LoraConfig(rank=4, target_modules=TEXT), seed=0)
    images = _encode(model, folder, trainable=False)
    forbidden = torch.tensor(chat.forbidden_ids(model.get_input_embeddings().num_embeddings))
    rows = [_transcript(chat, ["a"], 0)]
    assert not _logprobs(model, chat, rows, images, forbidden=forbidden)[1].requires_grad
    _logprobs(model, chat, rows, images, forbidden=forbidden, entropy_gradient=True)[1].sum().backward()
    gradients = [p.grad for p in adapter_parameters(model).values() if p.grad is not None]
    assert any(gradient.any() for gradient in gradients)
    assert all(bool(gradient.isfinite().all()) for gradient in gradients)


def test_base_policy_is_the_model_without_its_adapter(folder: Path, chat: ChatFormat) -> None:
    model = _load(folder)
    rows = [_transcript(chat, ["a", "b"], 0)]
    with torch.no_grad():
        before = _logprobs(model, chat, rows, _encode(model, folder, trainable=False))[0]
        attach_lora(model, LoraConfig(rank=4, vision=True, target_modules=BOTH), seed=0)
        for parameter in adapter_parameters(model).values():
            parameter.normal_(std=0.3)
        adapted = _logprobs(model, chat, rows, _encode(model, folder, trainable=False))[0]
        with base_policy(model):
            base = _logprobs(model, chat, rows, _encode(model, folder, trainable=False))[0]
        again = _logprobs(model, chat, rows, _encode(model, folder, trainable=False))[0]
    assert torch.equal(base, before)
    assert torch.equal(again, adapted)
    assert float((adapted - base).abs().max()) > 0.1


def test_kept_images_are_what_the_tower_gave_and_the_oldest_go_first(folder: Path) -> None:
    model, processor = _load(folder), load_processor(folder)
    encoder = VisionEncoder(model.model.visual, recompute=False)

    def encode(cache: ImageCache, *names: str) -> EncodedImages:
        pngs = {name: PNGS[name] for name in names}
        return encode_images(
            encoder, processor, pngs, trainable=False, chunk_patches=1, device=torch.device("cpu"), cache=cache
        )

    all_of_them = encode(image_cache(2**30), *PNGS)
    size = sum(leaf.nbytes for leaf in all_of_them.leaves) * 16 // sum(TOKENS.values())  # of an image of 16 tokens
    cache = image_cache(2 * size)
    assert [encode(cache, *names).cached for names in (["a"], ["a", "b"], ["b", "a"])] == [0, 1, 2]
    found = encode(cache, "a", "c", "b")  # c takes the room of the one used longest ago
    assert (found.cached, len(cache), cache.used) == (2, 2, 2 * size)
    for name in ("a", "b", "c"):
        here, there = found.token_rows[name], all_of_them.token_rows[name]
        assert found.grids[name] == all_of_them.grids[name]
        for level, expected in zip(found.leaves, all_of_them.leaves, strict=True):
            assert torch.equal(level[here.start : here.stop], expected[there.start : there.stop])
    assert encode(cache, "c").cached == 1
    nothing = image_cache(0)
    assert [encode(nothing, "a").cached for _ in range(2)] == [0, 0]


def test_entropy_is_of_the_allowed_tokens(folder: Path, chat: ChatFormat) -> None:
    """With all but two ids forbidden the entropy lies within ln 2."""
    model = _load(folder)
    row = replace(_transcript(chat, ["a"], 0))
    two = sorted({row.ids[row.spans[0][0]], row.ids[row.spans[0][0] + 1]})[:2]
    vocab = model.get_input_embeddings().num_embeddings
    forbidden = torch.tensor([i for i in range(vocab) if i not in two])
    with torch.no_grad():
        logprobs, entropy = _logprobs(model, chat, [row], _encode(model, folder, trainable=False), forbidden=forbidden)
    assert 0 <= float(entropy.min()) <= float(entropy.max()) <= 0.6931473
    # the entropy of a two-way choice follows from the logprob of either way: H(p) = -p ln p - (1-p) ln(1-p)
    p = logprobs[0].exp()
    assert_close(entropy[0], -(p * p.log() + (1 - p) * (1 - p).log()), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("chunk_patches", [10_000, 64])
def test_gradient_through_the_tower_is_that_of_one_graph(folder: Path, chat: ChatFormat, chunk_patches: int) -> None:
    """Images encoded once and cut off, two forward passes, one pass back: as if all were one graph."""
    rows = [_transcript(chat, ["a", "wide"], 0), _transcript(chat, ["a", "b"], 1)]
    lora = LoraConfig(rank=4, target_modules=BOTH, vision=True)
    gradients = []
    for cut in (True, False):
        model = _load(folder)
        attach_lora(model, lora, seed=0)
        _randomise(model)
        images = _encode(model, folder, trainable=True, chunk_patches=chunk_patches)
        if not cut:
            levels = tuple(torch.cat(level) for level in zip(*images.outputs, strict=True))
            images = replace(images, leaves=levels)
        losses = [_logprobs(model, chat, [row], images)[0].sum() for row in rows]
        if cut:
            for loss in losses:
                loss.backward()
            images.backward()
        else:
            torch.stack(losses).sum().backward()
        gradients.append({name: p.grad for name, p in adapter_parameters(model).items()})
    assert any("visual" in name for name in gradients[0])
    for name, gradient in gradients[0].items():
        assert_close(gradient, gradients[1][name], rtol=1e-4, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")


def _randomise(model: torch.nn.Module) -> None:
    """B is zero in a fresh adapter, and with it A's gradient."""
    torch.manual_seed(1)
    for name, parameter in adapter_parameters(model).items():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.02)


def test_token_grid_is_what_the_processor_makes(folder: Path) -> None:
    processor = load_processor(folder)
    for height, width in ((64, 64), (32, 96), (50, 71), (8, 8), (700, 40)):
        png = _png(0, height, width)
        _, grid_thw = image_pixels(processor, [png])
        assert token_grid(processor, png) == (int(grid_thw[0, 1]) // 2, int(grid_thw[0, 2]) // 2)
    with pytest.raises(UserError, match="not a whole PNG"):
        token_grid(processor, b"no image")


def test_adapter_is_what_peft_reads(folder: Path, chat: ChatFormat, tmp_path: Path) -> None:
    """Our names and config make a PEFT adapter: loaded by peft, the policy is the same, and not the base's."""
    model = _load(folder)
    settings = attach_lora(model, LoraConfig(rank=4, alpha=8, target_modules=TEXT), seed=3)
    _randomise(model)
    tensors = {name: p.detach().clone() for name, p in adapter_parameters(model).items()}
    safetensors.torch.save_file(tensors, tmp_path / "adapter_model.safetensors")
    (tmp_path / "adapter_config.json").write_text(adapter_config_json(settings))
    base = _load(folder)
    rows = [_transcript(chat, ["a", "b"], 0)]
    with torch.no_grad():
        before = _logprobs(base, chat, rows, _encode(base, folder, trainable=False))[0]
        loaded = peft.PeftModel.from_pretrained(base, str(tmp_path)).get_base_model()
        found = _logprobs(loaded, chat, rows, _encode(loaded, folder, trainable=False))[0]
        expected = _logprobs(model, chat, rows, _encode(model, folder, trainable=False))[0]
    assert_close(found, expected, rtol=0, atol=1e-6)
    assert float((found - before).abs().max()) > 1e-3
    assert json.loads(adapter_config_json(settings))["r"] == 4


def test_fresh_adapter_is_the_base_policy_and_the_seed_decides_it(folder: Path) -> None:
    adapters = []
    for seed in (0, 0, 1):
        model = _load(folder)
        attach_lora(model, LoraConfig(rank=4, target_modules=TEXT), seed=seed)
        adapters.append(adapter_parameters(model))
    for name, parameter in adapters[0].items():
        assert torch.equal(parameter, adapters[1][name])
        if "lora_B" in name:
            assert not parameter.any()
        else:
            assert not torch.equal(parameter, adapters[2][name])


@pytest.mark.parametrize(
    ("lora", "said"),
    [
        (LoraConfig(target_modules="nowhere"), "target_modules"),
        (LoraConfig(target_modules=BOTH), "learner.lora.vision is False"),
        (LoraConfig(target_modules=TEXT, vision=True), "does not reach the vision tower"),
        (LoraConfig(target_modules=(r"lm_head",)), "reaches lm_head"),
        (LoraConfig(target_modules=r".*patch_embed\.proj", vision=True), "patch_embed"),
    ],
)
def test_impossible_targets_are_refused_in_one_line(folder: Path, lora: LoraConfig, said: str) -> None:
    with pytest.raises(UserError, match=said) as refused:
        attach_lora(_load(folder), lora, seed=0)
    assert "\n" not in str(refused.value)
