"""Forward passes over the rows of a batch, by microbatch; each rank its own share, all ranks as many rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from tandem.algo import Packed, TrainSequence, microbatches, split_contiguous
from tandem.model.sequences import build_sequences, sequence_logprobs
from tandem.model.sharding import ShardedPolicy
from tandem.model.vision import EncodedImages, ImageCache, encode_images
from tandem.runtime import WAITS
from tandem_learner.comm import Comm

Measured = Mapping[int, Tensor]  # logprobs float32 [T] of the rows of this rank, by their index in the batch


@dataclass(frozen=True)
class ForwardSettings:
    """What stays the same from pass to pass.

    `forbidden`: int64 [F], ids that are never sampled. `chunk_patches`: most patches at once in the vision tower.
    """

    processor: Qwen2VLImageProcessorPil
    image_id: int
    pad_id: int
    forbidden: Tensor
    temperature: float
    microbatch_tokens: int
    chunk_patches: int
    entropy_gradient: bool
    cache: ImageCache


def plan_rounds(
    sequences: Sequence[TrainSequence], rank: int, world_size: int, budget: int
) -> tuple[list[list[int]], int]:
    """This rank's microbatches, as indices into `sequences`, and how many the rank with most of them has.

    Every rank computes the same plan, so nothing needs to be agreed on.
    """
    lengths = [len(sequence.ids) for sequence in sequences]
    plans = [
        [[part.start + index for index in batch] for batch in microbatches([lengths[i] for i in part], budget)]
        for part in split_contiguous(lengths, world_size)
    ]
    return plans[rank], max(len(plan) for plan in plans)


def encode(
    policy: ShardedPolicy,
    sequences: Sequence[TrainSequence],
    images: Mapping[str, bytes],
    settings: ForwardSettings,
    comm: Comm,
) -> EncodedImages:
    """Each distinct image of some sequences, once, in order of first use."""
    names = dict.fromkeys(image for sequence in sequences for image in sequence.images)
    return encode_images(
        policy.encoder,
        settings.processor,
        {name: images[name] for name in names},
        trainable=policy.trains_vision,
        chunk_patches=settings.chunk_patches,
        device=comm.device,
        cache=settings.cache,
    )


def forward(
    policy: ShardedPolicy,
    sequences: Sequence[TrainSequence],
    encoded: EncodedImages | None,
    settings: ForwardSettings,
    device: torch.device,
) -> tuple[Tensor, Tensor]:
    """Logprobs and entropies of the K distinct tokens of some rows, float32 [K], row after row."""
    grids, token_rows = (encoded.grids, encoded.token_rows) if encoded else ({}, {})
    batch = build_sequences(sequences, grids, token_rows, settings.image_id, settings.pad_id).to(device)
    return sequence_logprobs(
        policy.model,
        batch,
        encoded,
        temperature=settings.temperature,
        forbidden=settings.forbidden,
        entropy_gradient=settings.entropy_gradient,
    )


def idle(policy: ShardedPolicy, settings: ForwardSettings, device: torch.device) -> Tensor:
    """A zero that has been through every layer: a rank without a row left meets the others there."""
    row = TrainSequence((settings.pad_id, settings.pad_id), (), ((1, 2),))
    return forward(policy, [row], None, settings, device)[0].sum() * 0.0


@torch.no_grad()
def measure(
    policy: ShardedPolicy, packed: Packed, images: Mapping[str, bytes], settings: ForwardSettings, comm: Comm
) -> Measured:
    """Logprobs of this rank's rows as the policy is now. A collective."""
    mine, rounds = plan_rounds(packed.sequences, comm.rank, comm.world_size, settings.microbatch_tokens)
    encoded = encode(policy, [packed.sequences[i] for batch in mine for i in batch], images, settings, comm)
    found: dict[int, Tensor] = {}
    for turn in range(rounds):
        WAITS.progressed()
        if turn >= len(mine):
            idle(policy, settings, comm.device)
            continue
        rows = [packed.sequences[i] for i in mine[turn]]
        logprobs, _ = forward(policy, rows, encoded, settings, comm.device)
        parts = logprobs.split([row.completion_tokens for row in rows])
        found |= dict(zip(mine[turn], parts, strict=True))
    for module in (*policy.roots, policy.encoder):
        if isinstance(module, FSDPModule):
            module.reshard()  # without a backward pass a root would keep its weights, and miss the next update
    return found
