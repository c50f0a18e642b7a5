"""Prompts for vLLM, put together by index arithmetic from what its renderer makes of each distinct image.

The renderer works on whole prompts: for every request it would look for placeholders, hash images and match
cached items. All of that depends on the single image alone, so it is done when an image is first seen:

    ids sent:      a b <pad> c d <pad> e           one placeholder per image
    ids expanded:  a b <pad pad pad pad> c d <pad pad> e
                       ^ offset, length of image 1

The pixels go to the engine's process with the first request that holds the image; later ones name its hash.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from PIL import Image

from tandem.model.chat import ChatFormat
from tandem.model.frames import Frame
from tandem.model.lru import LRU

LAYOUTS = 65_536  # images whose layout is remembered: about 1 kB each
RENDERED = 64  # images whose tensors wait here between `expand` and `build`


@dataclass(frozen=True, slots=True)
class _Layout:
    """What an image's placeholder becomes: its ids, and vLLM's range and hash."""

    ids: tuple[int, ...]
    range: Any  # vLLM's PlaceholderRange, offset within `ids`
    hash: str


class PromptBuilder:
    """Builds vLLM's rendered prompts. Not for use from several threads."""

    def __init__(self, llm: Any, chat: ChatFormat) -> None:
        self.renderer = llm.renderer
        self.pad = chat.image_id
        self._layouts: LRU[str, _Layout] = LRU(LAYOUTS)
        self._tensors: LRU[str, Any] = LRU(RENDERED)

    def expand(self, prompt_ids: Sequence[int], frames: Sequence[Frame]) -> tuple[int, ...]:
        """Ids with each placeholder replaced by its image's. Raises ValueError where their numbers differ."""
        return self._assemble(prompt_ids, frames)[0]

    def build(self, prompt_ids: Sequence[int], frames: Sequence[Frame]) -> Any:
        """A rendered prompt (vLLM's EngineInput). Hand it over before building the next one: the engine's
        image cache follows the order in which requests arrive."""
        ids, offsets = self._assemble(prompt_ids, frames)
        if not frames:
            return {"type": "token", "prompt_token_ids": list(ids)}
        items = [self._item(frame) for frame in frames]
        layouts = [self._layout(frame) for frame in frames]
        return {
            "type": "multimodal",
            "prompt_token_ids": list(ids),
            "mm_kwargs": {"image": items},
            "mm_hashes": {"image": [layout.hash for layout in layouts]},
            "mm_placeholders": {
                "image": [
                    replace(layout.range, offset=offset + layout.range.offset)
                    for layout, offset in zip(layouts, offsets, strict=True)
                ]
            },
        }

    def _assemble(self, prompt_ids: Sequence[int], frames: Sequence[Frame]) -> tuple[tuple[int, ...], list[int]]:
        """Expanded ids, and where each image's ids start."""
        if prompt_ids.count(self.pad) != len(frames):
            raise ValueError(f"{prompt_ids.count(self.pad)} image placeholders for {len(frames)} images")
        ids: list[int] = []
        offsets: list[int] = []
        start = 0
        for frame in frames:
            at = prompt_ids.index(self.pad, start)
            ids.extend(prompt_ids[start:at])
            offsets.append(len(ids))
            ids.extend(self._layout(frame).ids)
            start = at + 1
        ids.extend(prompt_ids[start:])
        return tuple(ids), offsets

    def _layout(self, frame: Frame) -> _Layout:
        found = self._layouts.get(frame.sha256)
        if found is None:
            self._render(frame)
            found = self._layouts[frame.sha256]
        return found

    def _item(self, frame: Frame) -> Any:
        """The processed image, or None where the engine's process has it already."""
        layout, cache = self._layout(frame), self.renderer.mm_processor_cache
        if cache.is_cached_item(layout.hash):
            return cache.get_and_update_item(None, layout.hash)[0]  # also marks it as used lately, on both sides
        if self._tensors.get(frame.sha256) is None:
            self._render(frame)
        return cache.get_and_update_item((self._tensors[frame.sha256], []), layout.hash)[0]

    def _render(self, frame: Frame) -> None:
        """Have vLLM process one image; remembers its layout and, for a while, its tensors."""
        (rendered,) = self.renderer.render_cmpl(
            [
                {
                    "prompt_token_ids": [self.pad],
                    "multi_modal_data": {"image": [Image.fromarray(frame.pixels)]},
                    "multi_modal_uuids": {"image": [frame.sha256]},
                }
            ],
            skip_mm_cache=True,
        )
        self._layouts[frame.sha256] = _Layout(
            ids=tuple(rendered["prompt_token_ids"]),
            range=rendered["mm_placeholders"]["image"][0],
            hash=rendered["mm_hashes"]["image"][0],
        )
        self._tensors[frame.sha256] = rendered["mm_kwargs"]["image"][0]
