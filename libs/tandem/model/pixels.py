"""Images as the vision tower wants them, with the numbers of the stock image processor."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil, smart_resize


def decode_png(png: bytes) -> NDArray[np.uint8]:
    """PNG bytes -> uint8 [H, W, 3]."""
    return np.asarray(Image.open(io.BytesIO(png), formats=("PNG",)).convert("RGB"))


def image_pixels(
    processor: Qwen2VLImageProcessorPil, images: Sequence[bytes | NDArray[np.uint8]]
) -> tuple[Tensor, Tensor]:
    """Pixels of images, PNG bytes or uint8 [H, W, 3].

    Returns:
        float32 [sum of patches, C * T * P * P], images one after the other, and grid_thw int64 [images, 3].
    """
    arrays = [decode_png(image) if isinstance(image, bytes) else image for image in images]
    if len({array.shape for array in arrays}) == 1 and _keeps_size(processor, arrays[0].shape):
        return patchify(processor, np.stack(arrays))
    out: Any = processor(images=[Image.fromarray(array) for array in arrays], return_tensors="pt")
    return out["pixel_values"], out["image_grid_thw"]


def patchify(processor: Qwen2VLImageProcessorPil, images: NDArray[np.uint8]) -> tuple[Tensor, Tensor]:
    """Equal images that need no resizing, all at once: uint8 [N, H, W, 3] -> as `image_pixels`."""
    n, height, width, channels = images.shape
    patch, merge, frames = processor.patch_size, processor.merge_size, processor.temporal_patch_size
    rows, cols = height // patch, width // patch
    x = torch.from_numpy(_normalised(processor)[images, np.arange(channels)])  # float32 [N, H, W, C]
    x = x.view(n, rows // merge, merge, patch, cols // merge, merge, patch, channels)
    x = x.permute(0, 1, 4, 2, 5, 7, 3, 6)  # [N, gh, gw, mh, mw, C, ph, pw]
    x = x.unsqueeze(6).expand(*x.shape[:6], frames, patch, patch)  # a still image is `frames` equal frames
    return x.reshape(n * rows * cols, -1), torch.tensor([[1, rows, cols]]).expand(n, 3)


def _normalised(processor: Qwen2VLImageProcessorPil) -> NDArray[np.float32]:
    """The normalised value of every byte in every channel: float32 [256, C]."""
    scaled = np.arange(256, dtype=np.float32)[:, None] * np.float32(processor.rescale_factor)
    mean, std = np.asarray(processor.image_mean, np.float32), np.asarray(processor.image_std, np.float32)
    return ((scaled - mean) / std).astype(np.float32)


def _keeps_size(processor: Qwen2VLImageProcessorPil, shape: tuple[int, ...]) -> bool:
    height, width = shape[:2]
    size = smart_resize(
        height,
        width,
        factor=processor.patch_size * processor.merge_size,
        min_pixels=processor.size["shortest_edge"],
        max_pixels=processor.size["longest_edge"],
    )
    return size == (height, width)
