"""How many placeholders an image takes in a prompt, as Qwen-VL's image processor sizes images. No torch.

The engine replaces each <|image_pad|> by one a merged token of its image; so must whoever builds prompts without one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tandem.types import UserError


@dataclass(frozen=True, slots=True)
class TokenGrid:
    """Images get sides in multiples of `side` px, one merged token each, and an area of `least` to `most` square px."""

    side: int
    least: int
    most: int

    @staticmethod
    def load(model_dir: str | Path) -> TokenGrid:
        """From a model folder's preprocessor_config.json. Raises UserError where it is missing or says too little."""
        path = Path(model_dir) / "preprocessor_config.json"
        try:
            said = json.loads(path.read_text(encoding="utf-8"))
            size = said["size"]
            return TokenGrid(
                int(said["patch_size"]) * int(said["merge_size"]),
                int(size["shortest_edge"]),
                int(size["longest_edge"]),
            )
        except (OSError, ValueError, KeyError, TypeError) as problem:
            raise UserError(f"{path}: not the settings of a Qwen-VL image processor: {problem!r}") from problem

    def of(self, height: int, width: int) -> tuple[int, int]:
        """(height, width) in merged tokens of an image of so many px.

        Each side goes to the nearest multiple; where the area is then out of bounds both are scaled by the factor that
        would put the image's own area on the bound, and rounded away from it.
        """
        rows, columns = round(height / self.side), round(width / self.side)
        area = rows * columns * self.side**2
        if area > self.most:
            scale = math.sqrt(height * width / self.most) * self.side
            return max(1, math.floor(height / scale)), max(1, math.floor(width / scale))
        if area < self.least:
            scale = math.sqrt(self.least / (height * width)) / self.side
            return math.ceil(height * scale), math.ceil(width * scale)
        return rows, columns

    def expand(self, prompt_ids: Sequence[int], sizes: Iterable[tuple[int, int]], image_id: int) -> tuple[int, ...]:
        """A prompt of one placeholder an image with each repeated as often as its image needs.

        Args:
            sizes: (height, width) in px, one for each placeholder.
        Raises:
            ValueError: there are more placeholders than sizes, or fewer.
        """
        counts = [math.prod(self.of(*size)) for size in sizes]
        if prompt_ids.count(image_id) != len(counts):
            raise ValueError(f"{prompt_ids.count(image_id)} image placeholders for {len(counts)} images")
        left = iter(counts)
        return tuple(i for token in prompt_ids for i in ((token,) * next(left) if token == image_id else (token,)))
