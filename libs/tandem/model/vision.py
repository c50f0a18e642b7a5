"""Each distinct image through the vision tower once, however many rows and forward passes use it.

The tower's output is cut off from its graph: forward passes use the leaves, their backward passes add up
gradients there, and one last backward pass takes the sum through the tower. A frozen tower needs no graph at
all, and what it gave for an image can be kept for the rest of the run.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from tandem.model.fast_vision import image_features
from tandem.model.lru import LRU
from tandem.model.pixels import decode_png, image_pixels
from tandem.model.placeholders import TokenGrid
from tandem.types import UserError


class VisionEncoder(nn.Module):
    """The tower with a plain tensor interface: a module of its own so that FSDP can shard it as one unit."""

    def __init__(self, visual: Any, recompute: bool) -> None:
        super().__init__()
        self.visual = visual
        self.recompute = recompute

    def forward(self, pixels: Tensor, grid_thw: Tensor) -> tuple[Tensor, ...]:
        """pixels [patches, C * T * P * P], int [images, 3] -> pooled, deepstack levels, each [tokens, D]."""
        if self.recompute and torch.is_grad_enabled():
            return checkpoint(self._features, pixels, grid_thw, use_reentrant=False)  # type: ignore[return-value]
        return self._features(pixels, grid_thw)

    def _features(self, pixels: Tensor, grid_thw: Tensor) -> tuple[Tensor, ...]:
        found = image_features(self.visual, pixels, grid_thw)
        levels = (found.pooler_output, *(found.deepstack_features or ()))
        return tuple(torch.cat(list(level)) for level in levels)  # type: ignore[arg-type]


@dataclass(frozen=True)
class EncodedImages:
    """Tokens of all images, one after the other: `leaves` are the pooled and deepstack levels, each [tokens,
    D].

    `grids`: (height, width) in merged tokens, by sha256; `token_rows`: the image's rows in each level.
    `outputs` are the tower's own outputs, chunk by chunk, empty where no gradient is wanted. `cached`: how many
    images the tower was spared.
    """

    grids: Mapping[str, tuple[int, int]]
    token_rows: Mapping[str, range]
    leaves: tuple[Tensor, ...]
    outputs: tuple[tuple[Tensor, ...], ...]
    cached: int

    def backward(self) -> None:
        """Take the gradients that gathered in the leaves through the tower, in one pass over all chunks."""
        tensors: list[Tensor] = []
        gradients: list[Tensor] = []
        for level, leaf in enumerate(self.leaves):
            gradient = leaf.grad if leaf.grad is not None else torch.zeros_like(leaf)
            start = 0
            for chunk in self.outputs:
                tensors.append(chunk[level])
                gradients.append(gradient[start : start + len(chunk[level])])
                start += len(chunk[level])
        if tensors:
            torch.autograd.backward(tensors, gradients)


@dataclass(frozen=True)
class KeptImage:
    """One image as a frozen tower gave it: `grid` (height, width) in merged tokens, `levels` each [tokens, D]."""

    grid: tuple[int, int]
    levels: tuple[Tensor, ...]

    @property
    def nbytes(self) -> int:
        """Bytes."""
        return sum(level.nbytes for level in self.levels)


ImageCache: TypeAlias = LRU[str, KeptImage]  # by sha256, in host memory


def image_cache(most_bytes: int) -> ImageCache:
    """Room for so many bytes of encoded images; the least recently used go first."""
    return LRU(most_bytes, weigh=lambda image: image.nbytes)


def encode_images(
    encoder: VisionEncoder,
    processor: Qwen2VLImageProcessorPil,
    images: Mapping[str, bytes],
    *,
    trainable: bool,
    chunk_patches: int,
    device: torch.device,
    cache: ImageCache | None = None,
) -> EncodedImages:
    """Encode PNG images by sha256, equal sizes together, in chunks of at most `chunk_patches` patches (or
    one image). For a frozen tower, what `cache` holds is taken from there and the rest put there.

    A trainable tower runs even without an image, on a blank one that nobody uses: sharded over ranks, all
    must run it. Gradients are wanted where it is trainable and they are enabled.
    """
    cache = None if trainable else cache
    kept = {} if cache is None else {name: image for name in images if (image := cache.get(name)) is not None}
    arrays = {name: decode_png(png) for name, png in images.items() if name not in kept}
    names = sorted(arrays, key=lambda name: arrays[name].shape)  # stable: images of one size keep their order
    visual, merge = encoder.visual, encoder.visual.spatial_merge_size
    grids: dict[str, tuple[int, int]] = {}
    chunks: list[tuple[Tensor, ...]] = []
    for chunk in _chunks(names, [arrays[name].shape for name in names], processor.patch_size**2, chunk_patches):
        pixels, grid_thw = image_pixels(processor, [arrays[name] for name in chunk])
        chunks.append(_run(encoder, pixels, grid_thw, trainable, device))
        for name, (_, rows, columns) in zip(chunk, grid_thw.tolist(), strict=True):
            grids[name] = (rows // merge, columns // merge)
    if trainable and not chunks:
        width = math.prod(visual.patch_embed.proj.weight.shape[1:])  # no value is asked for: other ranks would wait
        blank = torch.zeros(merge**2, width), torch.tensor([[1, merge, merge]])
        chunks.append(_run(encoder, *blank, trainable, device))
    grids |= {name: image.grid for name, image in kept.items()}
    levels = [*chunks, *(tuple(level.to(device) for level in image.levels) for image in kept.values())]
    gradient = trainable and torch.is_grad_enabled()
    leaves = tuple(torch.cat(level).detach().requires_grad_(gradient) for level in zip(*levels, strict=True))
    token_rows = _rows_of(grids)
    if cache is not None:
        for name in names:
            rows = token_rows[name]
            parts = (leaf[rows.start : rows.stop] for leaf in leaves)
            cache[name] = KeptImage(grids[name], tuple(part.to("cpu", copy=True) for part in parts))
    return EncodedImages(grids, token_rows, leaves, tuple(chunks) if gradient else (), len(kept))


def _rows_of(grids: Mapping[str, tuple[int, int]]) -> dict[str, range]:
    """Each image's rows where all stand one after the other."""
    found: dict[str, range] = {}
    start = 0
    for name, (height, width) in grids.items():
        found[name] = range(start, start + height * width)
        start = found[name].stop
    return found


def token_grid(processor: Qwen2VLImageProcessorPil, png: bytes) -> tuple[int, int]:
    """(height, width) of a PNG image in merged tokens. Raises UserError for another file, or one cut short."""
    try:
        image = Image.open(io.BytesIO(png), formats=("PNG",))
        width, height = image.size
        image.verify()
    except (OSError, SyntaxError, Image.DecompressionBombError) as problem:
        raise UserError(f"image of {len(png)} bytes: not a whole PNG image") from problem
    side = processor.patch_size * processor.merge_size
    least, most = processor.size["shortest_edge"], processor.size["longest_edge"]
    return TokenGrid(side, least, most).of(height, width)


def _run(
    encoder: VisionEncoder, pixels: Tensor, grid_thw: Tensor, trainable: bool, device: torch.device
) -> tuple[Tensor, ...]:
    with torch.set_grad_enabled(trainable and torch.is_grad_enabled()):
        return encoder(pixels.to(device), grid_thw.to(device))


def _chunks(
    names: Sequence[str], shapes: Sequence[tuple[int, ...]], patch_area: int, chunk_patches: int
) -> list[list[str]]:
    """Runs of equal shape, each of at most `chunk_patches` patches, estimated from the image's own size."""
    found: list[list[str]] = []
    shape_before: tuple[int, ...] | None = None
    for name, shape in zip(names, shapes, strict=True):
        most = max(1, chunk_patches * patch_area // (shape[0] * shape[1]))
        if shape == shape_before and len(found[-1]) < most:
            found[-1].append(name)
        else:
            found.append([name])
        shape_before = shape
    return found
