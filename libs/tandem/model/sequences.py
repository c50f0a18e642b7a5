"""Training sequences -> learner logprobs of their completion tokens, in one forward with logits at those
tokens only.

Rows are padded on the right. Attention is causal, so no real token ever sees a pad and no mask is needed:

    [prompt ....][completion][prompt ....][completion][pad pad]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.utils.checkpoint import checkpoint
from transformers.models.qwen3_vl.modeling_qwen3_vl import BaseModelOutputWithDeepstackFeatures

from tandem.algo.packing import TrainSequence
from tandem.model.vision import EncodedImages

MOST_LOGITS = 2**27  # half a GiB of float32, several copies of which live at once


@dataclass(frozen=True)
class SequenceBatch:
    """N rows of L columns with K completion tokens in all, row by row.

    input_ids int64 [N, L]; position_ids int64 [4, N, L] (text, then temporal, height, width: M-RoPE); `rows`
    and `columns` int64 [K]: where the hidden state that predicts each completion token stands; token_ids
    int64 [K]; image_tokens int64 [I]: rows of the encoded images' tokens, in order of the placeholders they
    fill.
    """

    input_ids: Tensor
    position_ids: Tensor
    rows: Tensor
    columns: Tensor
    token_ids: Tensor
    image_tokens: Tensor

    def to(self, device: torch.device) -> SequenceBatch:
        """The same batch on a device."""
        names = ("input_ids", "position_ids", "rows", "columns", "token_ids", "image_tokens")
        return replace(self, **{name: getattr(self, name).to(device, non_blocking=True) for name in names})


def build_sequences(
    sequences: Sequence[TrainSequence],
    grids: Mapping[str, tuple[int, int]],
    token_rows: Mapping[str, range],
    image_id: int,
    pad_id: int,
) -> SequenceBatch:
    """Pad sequences into tensors.

    Args:
        sequences: at least one; no completion starts a sequence.
        grids: (height, width) in merged tokens of every image named.
        token_rows: rows of every image named in the encoded images' tokens.
        image_id: id of <|image_pad|>.
        pad_id: any id that is not `image_id`.
    Raises:
        ValueError: a row's placeholders are not those of its images.
    """
    # What follows the last completion predicts nothing, nor does that completion's own last token: not
    # computed
    needed = [sequence.ids[: sequence.spans[-1][1] - 1] for sequence in sequences]
    width = max(map(len, needed))
    input_ids = np.full((len(sequences), width), pad_id, dtype=np.int64)
    positions = np.zeros((4, len(sequences), width), dtype=np.int64)
    positions[0] = np.arange(width)
    image_tokens: list[np.ndarray] = [np.zeros(0, dtype=np.int64)]
    for row, sequence in enumerate(sequences):
        ids, shapes = needed[row], [grids[image] for image in sequence.images]
        input_ids[row, : len(ids)] = ids
        positions[1:, row, : len(ids)] = mrope_positions(ids, shapes, image_id)
        image_tokens.extend(np.asarray(token_rows[image]) for image in sequence.images)
    spans = [(row, start, stop) for row, sequence in enumerate(sequences) for start, stop in sequence.spans]
    rows = np.repeat([row for row, _, _ in spans], [stop - start for _, start, stop in spans])
    tokens = np.concatenate([np.arange(start, stop) for _, start, stop in spans])
    chosen = [sequences[row].ids[start:stop] for row, start, stop in spans]
    return SequenceBatch(
        input_ids=torch.from_numpy(input_ids),
        position_ids=torch.from_numpy(positions),
        rows=torch.from_numpy(rows),
        columns=torch.from_numpy(tokens - 1),  # the column before a token predicts it
        token_ids=torch.tensor([token for ids in chosen for token in ids]),
        image_tokens=torch.from_numpy(np.concatenate(image_tokens)),
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


def predicting_states(model: Any, batch: SequenceBatch, images: EncodedImages | None) -> Tensor:
    """The hidden states that predict the completion tokens, [K, D]: what the head makes logits of.

    `images` is what `batch.image_tokens` indexes; None for text-only rows.
    """
    encoded = None
    if images is not None and batch.image_tokens.numel():
        pooled, *deepstack = (level.index_select(0, batch.image_tokens) for level in images.leaves)  # each [I, D]
        encoded = BaseModelOutputWithDeepstackFeatures(
            pooler_output=(pooled,),  # type: ignore[arg-type]
            deepstack_features=[(level,) for level in deepstack],  # type: ignore[misc]
        )
    hidden = model.model(
        input_ids=batch.input_ids,
        position_ids=batch.position_ids,
        mm_encoder_outputs={"image": encoded} if encoded is not None else None,
        use_cache=False,
    ).last_hidden_state  # [N, L, D]
    return hidden[batch.rows, batch.columns]


def sequence_logprobs(
    model: Any,
    batch: SequenceBatch,
    images: EncodedImages | None,
    *,
    temperature: float,
    forbidden: Tensor,
    entropy_gradient: bool = False,
    most_logits: int = MOST_LOGITS,
) -> tuple[Tensor, Tensor]:
    """Logprobs of the completion tokens as the engine samples them: tempered, forbidden ids at probability
    zero.

    Args:
        model: a `Qwen3VLForConditionalGeneration`, with or without LoRA.
        images: what `batch.image_tokens` indexes; None for text-only rows.
        temperature: > 0.
        forbidden: int64 [F], ids never sampled (see `loading.forbidden_token_ids`).
        entropy_gradient: whether the entropy carries a gradient.
        most_logits: logits there may be at once; with more, a head that is whole runs in parts, and again for the
            backward pass.
    Returns:
        float32 [K] logprobs, and the float32 [K] entropy of each token's distribution, in nats.
    """
    chosen = predicting_states(model, batch, images)  # [K, D]

    def head(hidden: Tensor, token_ids: Tensor) -> tuple[Tensor, Tensor]:
        return _head_logprobs(model.lm_head, hidden, token_ids, temperature, forbidden, entropy_gradient)

    rows = max(1, most_logits // model.lm_head.out_features)
    if len(chosen) <= rows or isinstance(model.lm_head, FSDPModule):  # ranks must call a sharded head equally often
        return head(chosen, batch.token_ids)
    parts: list[Any] = [
        checkpoint(head, *part, use_reentrant=False, preserve_rng_state=False)
        for part in zip(chosen.split(rows), batch.token_ids.split(rows), strict=True)
    ]
    logprobs, entropy = zip(*parts, strict=True)
    return torch.cat(logprobs), torch.cat(entropy)


def _head_logprobs(
    lm_head: Any, hidden: Tensor, token_ids: Tensor, temperature: float, forbidden: Tensor, entropy_gradient: bool
) -> tuple[Tensor, Tensor]:
    """hidden [K, D], int64 [K] -> logprobs and entropy, float32 [K]."""
    logits = lm_head(hidden).float() / temperature  # [K, V]
    logprobs = torch.log_softmax(logits.index_fill(-1, forbidden, float("-inf")), dim=-1)
    with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
        finite = logprobs.clamp(min=torch.finfo(logprobs.dtype).min)  # 0 times minus infinity is not 0
        entropy = -(logprobs.exp() * finite).sum(-1)
    return logprobs.gather(-1, token_ids[:, None]).squeeze(-1), entropy
