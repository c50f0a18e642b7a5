"""Rows of (prompt, completion) -> learner logprobs, in one forward with logits at completion tokens only.

Prompts are padded on the left and completions on the right, so that all completions start in the same column:

    [pad pad prompt ...........][completion ... pad]
             <- P columns ->       <- T columns ->

Rows of one prompt length need no attention mask at all: callers that group rows by length get the fast causal path.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers.models.qwen3_vl.modeling_qwen3_vl import BaseModelOutputWithDeepstackFeatures


@dataclass(frozen=True, slots=True)
class Row:
    """One completion and its prompt. `prompt_ids` has image placeholders expanded; `images` indexes the images of
    the batch's features in order of the prompt's placeholders (one image may occur in many rows)."""

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    images: tuple[int, ...]


@dataclass(frozen=True)
class ForwardBatch:
    """What one forward takes. N rows, P prompt columns, T completion columns, L = P + T.

    input_ids int64 [N, L]; attention_mask int64 [N, L] or None where no prompt is padded; position_ids int64
    [4, N, L] (text, then temporal, height, width: M-RoPE); completion_ids int64 [N, T]; completion_mask bool [N, T];
    images: indices of the images in order of occurrence over all rows.
    """

    input_ids: Tensor
    attention_mask: Tensor | None
    position_ids: Tensor
    completion_ids: Tensor
    completion_mask: Tensor
    images: tuple[int, ...]


def build_batch(rows: Sequence[Row], grids: Sequence[tuple[int, int]], image_id: int, pad_id: int) -> ForwardBatch:
    """Pad rows into tensors.

    Args:
        grids: (height, width) in merged tokens of every image that `Row.images` can index.
        image_id: id of <|image_pad|>.
        pad_id: any id that is not `image_id`.
    Raises:
        ValueError: where a prompt's placeholders are not those of its images.
    """
    p = max(len(row.prompt_ids) for row in rows)
    t = max(len(row.completion_ids) for row in rows)
    ids = np.full((len(rows), p + t), pad_id, dtype=np.int64)
    mask = np.zeros((len(rows), p + t), dtype=np.int64)
    positions = np.zeros((4, len(rows), p + t), dtype=np.int64)
    cache: dict[tuple[Any, ...], NDArray[np.int64]] = {}
    for n, row in enumerate(rows):
        left, right = p - len(row.prompt_ids), p + len(row.completion_ids)
        ids[n, left:p], ids[n, p:right] = row.prompt_ids, row.completion_ids
        mask[n, left:] = 1  # what follows a completion is never attended to by it
        shapes = tuple(grids[i] for i in row.images)
        key = (row.prompt_ids, shapes)
        if key not in cache:
            cache[key] = mrope_positions(row.prompt_ids, shapes, image_id)
        start = cache[key][:, -1:].max() + 1 if row.prompt_ids else 0
        positions[1:, n, left:p] = cache[key]
        positions[1:, n, p:] = start + np.arange(t)
        positions[0, n, left:] = np.arange(p + t - left)
    completion = torch.from_numpy(ids[:, p:].copy())
    lengths = torch.tensor([len(row.completion_ids) for row in rows])
    return ForwardBatch(
        input_ids=torch.from_numpy(ids),
        attention_mask=None if mask.all() else torch.from_numpy(mask),
        position_ids=torch.from_numpy(positions),
        completion_ids=completion,
        completion_mask=torch.arange(t)[None, :] < lengths[:, None],
        images=tuple(i for row in rows for i in row.images),
    )


def mrope_positions(ids: Sequence[int], grids: Sequence[tuple[int, int]], image_id: int) -> NDArray[np.int64]:
    """Qwen3-VL's three-axis positions of one prompt (interleaved M-RoPE, Qwen3-VL technical report, 2025).

    Text counts on all three axes alike; an image of h x w tokens keeps one temporal position, spreads over height
    and width, and moves the count on by max(h, w).

    Returns:
        int64 [3, len(ids)].
    """
    tokens = np.asarray(ids, dtype=np.int64)
    out = np.zeros((3, len(tokens)), dtype=np.int64)
    at, position = 0, 0
    for h, w in grids:
        pads = np.nonzero(tokens[at:] == image_id)[0]
        first = at + int(pads[0]) if len(pads) else len(tokens)
        if not bool((tokens[first : first + h * w] == image_id).all()) or first + h * w > len(tokens):
            raise ValueError(f"prompt has no {h * w} placeholders for an image of {h} x {w} tokens")
        out[:, at:first] = position + np.arange(first - at)
        position += first - at
        y, x = np.divmod(np.arange(h * w), w)
        out[:, first : first + h * w] = position + np.stack([np.zeros_like(y), y, x])
        at, position = first + h * w, position + max(h, w)
    if bool((tokens[at:] == image_id).any()):
        raise ValueError("prompt has more image placeholders than images")
    out[:, at:] = position + np.arange(len(tokens) - at)
    return out


def select_features(
    features: BaseModelOutputWithDeepstackFeatures, images: Sequence[int]
) -> BaseModelOutputWithDeepstackFeatures:
    """The features of images in order of occurrence: an image in many rows is computed once and repeated here."""
    pooled, deepstack = features.pooler_output, features.deepstack_features or []
    assert pooled is not None
    return BaseModelOutputWithDeepstackFeatures(
        pooler_output=tuple(pooled[i] for i in images),  # type: ignore[arg-type]
        deepstack_features=[tuple(level[i] for i in images) for level in deepstack],  # type: ignore[misc]
    )


def completion_logits(model: Any, batch: ForwardBatch, features: BaseModelOutputWithDeepstackFeatures | None) -> Tensor:
    """Logits that predict the completion tokens: float32 [N, T, V]. `features` come from `fast_vision`."""
    t = batch.completion_ids.shape[1]
    encoded = {"image": select_features(features, batch.images)} if features is not None and batch.images else None
    out = model(
        input_ids=batch.input_ids,
        attention_mask=batch.attention_mask,
        position_ids=batch.position_ids,
        mm_encoder_outputs=encoded,
        logits_to_keep=t + 1,
        use_cache=False,
    )
    return out.logits[:, :-1].float()  # column P-1+i predicts completion token i


def completion_logprobs(
    model: Any,
    batch: ForwardBatch,
    features: BaseModelOutputWithDeepstackFeatures | None,
    temperature: float = 1.0,
    forbidden: Sequence[int] = (),
) -> Tensor:
    """Logprobs of the completion tokens as the engine samples them: tempered, forbidden ids at probability zero.

    Args:
        features: of the images that the batch indexes; None for text-only rows.
        temperature: > 0.
        forbidden: ids never sampled (see `loading.forbidden_token_ids`).
    Returns:
        float32 [N, T], zero where `completion_mask` is False.
    """
    logits = completion_logits(model, batch, features) / temperature
    if forbidden:
        logits = logits.index_fill(-1, torch.tensor(list(forbidden), device=logits.device), float("-inf"))
    chosen = logits.gather(-1, batch.completion_ids[..., None]).squeeze(-1)
    logprobs = chosen - torch.logsumexp(logits, dim=-1)  # [N, T]
    return torch.where(batch.completion_mask, logprobs, torch.zeros_like(logprobs))
