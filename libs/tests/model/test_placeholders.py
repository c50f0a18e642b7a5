"""Image sizes in tokens are those of the stock image processor."""

import json
from pathlib import Path

import numpy as np
import pytest
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

from tandem.model.placeholders import TokenGrid
from tandem.types import UserError

MODEL = Path(__file__).parents[3] / "models" / "tiny-qwen3vl"
QWEN3_VL = TokenGrid(32, 65_536, 16_777_216)  # patches of 16 merged 2 x 2
TINY = TokenGrid(16, 256, 262_144)


@pytest.mark.parametrize("grid", [QWEN3_VL, TINY])
def test_every_size_is_the_processors(grid):
    rng = np.random.default_rng(0)
    sizes = [(int(h), int(w)) for h, w in rng.integers(grid.side, 3000, (2000, 2))]
    sizes += [(int(h), int(w)) for h, w in rng.integers(grid.side, 200, (2000, 2))]
    sizes += [(grid.side * k + grid.side // 2, 5 * grid.side) for k in range(1, 20)]  # halfway between two multiples
    for height, width in sizes:
        stock = smart_resize(height, width, factor=grid.side, min_pixels=grid.least, max_pixels=grid.most)
        assert grid.of(height, width) == (stock[0] // grid.side, stock[1] // grid.side), (height, width)


def test_each_placeholder_becomes_its_images_tokens():
    assert TokenGrid.load(MODEL) == TINY
    assert TINY.expand((1, 9, 2, 9, 3), [(32, 16), (64, 48)], image_id=9) == (1, 9, 9, 2, *(9,) * 12, 3)
    assert TINY.expand((1, 2), [], image_id=9) == (1, 2)
    for sizes in ([], [(16, 16)] * 3):
        with pytest.raises(ValueError, match=f"2 image placeholders for {len(sizes)} images"):
            TINY.expand((9, 9), sizes, image_id=9)


def test_settings_that_say_too_little_are_named(tmp_path):
    with pytest.raises(UserError, match=r"preprocessor_config.json"):
        TokenGrid.load(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"patch_size": 16, "merge_size": 2, "size": {}}))
    with pytest.raises(UserError, match="shortest_edge"):
        TokenGrid.load(tmp_path)
