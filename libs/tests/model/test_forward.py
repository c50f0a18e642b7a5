"""Our batched forward gives the stock model's numbers."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tandem.algo.packing import TrainSequence
from tandem.envs import make
from tandem.envs.maze2d import HIT_WALL, action_text
from tandem.model.chat import ChatFormat
from tandem.model.fast_vision import image_features
from tandem.model.loading import load_model, load_processor
from tandem.model.pixels import image_pixels
from tandem.model.precision import mixed_precision
from tandem.model.sequences import build_sequences, mrope_positions, sequence_logprobs
from tandem.model.vision import EncodedImages, VisionEncoder

MODEL = Path(__file__).parents[3] / "models" / "tiny-qwen3vl"
GRID = (4, 4)


def frame(env_id: str, seed: int):
    return make(env_id).reset(seed).images[0]


def features(model, pixels, grid):
    """Our features: per image pooled, per image deepstack of the one level there is."""
    found = image_features(model.model.visual, pixels, grid)
    assert found.pooler_output is not None and found.deepstack_features is not None
    return found.pooler_output, found.deepstack_features[0]


@pytest.fixture(scope="module")
def model():
    torch.set_num_threads(1)
    return load_model(MODEL)


@pytest.fixture(scope="module")
def processor():
    return load_processor(MODEL)


@pytest.fixture(scope="module")
def chat():
    return ChatFormat.load(MODEL)


@pytest.fixture(scope="module")
def frames():
    return [frame("maze2d:tiny", seed) for seed in range(4)]


def rows_of(chat) -> list[TrainSequence]:
    """Four rows: one to three images, a completion cut off, one image shared by several rows."""
    env, out = make("maze2d:tiny"), []
    for i, images in enumerate([(0,), (1, 0), (2, 3, 1), (3,)]):
        seen = [("", 1)] + [(HIT_WALL, 1)] * (len(images) - 1)
        said = [(*chat.encode(action_text(k)), chat.end_id) for k in range(len(images) - 1)]
        prompt = chat.window_prompt(env.instruction, seen, said)
        expanded = tuple(x for t in prompt for x in ((t,) * 16 if t == chat.image_id else (t,)))
        ids = (*expanded, *chat.encode(action_text(2)), *(() if i == 1 else (chat.end_id,)))
        out.append(TrainSequence(ids, tuple(map(str, images)), ((len(expanded), len(ids)),)))
    return out


def encoded(model, pixels, grid) -> EncodedImages:
    """Images "0", "1", ... of 4 x 4 tokens."""
    levels = VisionEncoder(model.model.visual, recompute=False)(pixels, grid)
    names = [str(i) for i in range(len(grid))]
    rows = {name: range(16 * i, 16 * i + 16) for i, name in enumerate(names)}
    return EncodedImages(dict.fromkeys(names, GRID), rows, levels, (), 0)


def logprobs_of(model, chat, images: EncodedImages, temperature=1.0, forbidden=()) -> torch.Tensor:
    """Of all rows' completion tokens, one after the other."""
    batch = build_sequences(rows_of(chat), images.grids, images.token_rows, chat.image_id, chat.end_id)
    never = torch.tensor(forbidden, dtype=torch.int64)
    return sequence_logprobs(model, batch, images, temperature=temperature, forbidden=never)[0]


def stock_logprobs(model, chat, row: TrainSequence, pixels, grid, forbidden, temperature):
    """One row alone through transformers' own forward."""
    ids, ((start, _),) = torch.tensor([row.ids]), row.spans
    shown = [int(name) for name in row.images]
    patches = pixels.view(len(grid), 64, -1)[shown].flatten(0, 1)
    logits = model(
        input_ids=ids,
        pixel_values=patches,
        image_grid_thw=grid[shown],
        mm_token_type_ids=(ids == chat.image_id).int(),
    ).logits[0, start - 1 : -1]
    logits = logits / temperature
    logits[:, list(forbidden)] = float("-inf")
    return logits.log_softmax(-1).gather(-1, torch.tensor(row.ids[start:])[:, None])[:, 0]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_of_mixed_rows_equal_the_stock_forward(model, processor, chat, frames, temperature):
    forbidden = chat.forbidden_ids(model.lm_head.out_features)
    pixels, grid = image_pixels(processor, frames)
    with torch.no_grad():
        found = logprobs_of(model, chat, encoded(model, pixels, grid), temperature, forbidden)
        expected = [stock_logprobs(model, chat, row, pixels, grid, forbidden, temperature) for row in rows_of(chat)]
    assert [len(row) for row in expected] == [3, 2, 3, 3]
    assert (found - torch.cat(expected)).abs().max() < 2e-5


def test_positions_equal_transformers(model, chat):
    for row in rows_of(chat):
        ids = torch.tensor([row.ids])
        grid = torch.tensor([[1, 8, 8]] * len(row.images))
        expected, _ = model.model.get_rope_index(
            ids, image_grid_thw=grid, mm_token_type_ids=(ids == chat.image_id).int()
        )
        assert np.array_equal(mrope_positions(row.ids, [GRID] * len(row.images), chat.image_id), expected[:, 0])


def test_placeholders_must_match_the_images(chat):
    row = rows_of(chat)[1]
    for grids in ([GRID], [GRID] * 3, [GRID, (4, 5)]):
        with pytest.raises(ValueError, match="placeholders"):
            mrope_positions(row.ids, grids, chat.image_id)


def test_vision_tower_in_one_batch_equals_the_stock_tower(model, processor, frames):
    pixels, grid = image_pixels(processor, frames)
    with torch.no_grad():
        pooled, deepstack = features(model, pixels, grid)
        stock = model.model.get_image_features(pixels, grid)
    for mine, theirs in zip((*pooled, *deepstack), (*stock.pooler_output, *stock.deepstack_features[0]), strict=True):
        assert torch.allclose(mine, theirs, rtol=1e-4, atol=1e-4)


def test_images_of_different_sizes_take_the_stock_path(model, processor):
    images = [frame(f"maze2d:{name}", 0) for name in ("tiny", "easy")]
    pixels, grid = image_pixels(processor, images)
    with torch.no_grad():
        mixed, _ = features(model, pixels, grid)
        alone, _ = features(model, *image_pixels(processor, images[:1]))
    assert [len(f) for f in mixed] == (grid.prod(-1) // 4).tolist()
    assert torch.allclose(mixed[0], alone[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["tiny", "easy"])
def test_pixels_equal_the_stock_image_processor(processor, name, tmp_path):
    images = [frame(f"maze2d:{name}", seed) for seed in range(3)]
    pixels, grid = image_pixels(processor, images)
    stock = processor(images=[Image.fromarray(image) for image in images], return_tensors="pt")
    assert torch.equal(grid, stock["image_grid_thw"])
    assert (pixels - stock["pixel_values"]).abs().max() < 1e-6
    if name == "tiny":
        assert grid.tolist() == [[1, 8, 8]] * 3, "64 x 64 px are not resized: one merged token per room"
    Image.fromarray(images[0]).save(tmp_path / "x.png")
    again, _ = image_pixels(processor, [(tmp_path / "x.png").read_bytes()])
    assert torch.equal(again, image_pixels(processor, images[:1])[0])


def test_mixed_precision_is_close_and_leaves_no_trace(model, processor, chat, frames):
    pixels, grid = image_pixels(processor, frames)

    def logprobs() -> torch.Tensor:
        return logprobs_of(model, chat, encoded(model, pixels, grid))

    with torch.no_grad():
        before = logprobs()
        with mixed_precision(model, enabled=True):
            rough = logprobs()
        assert torch.equal(before, logprobs())
    assert 0 < (rough - before).abs().max() < 0.5
