"""The gradient of one optimizer update: encode images -> forward and backward by microbatch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from tandem.algo import (
    Occurrences,
    Packed,
    TrainSequence,
    clipped_policy_loss,
    microbatches,
    split_contiguous,
)
from tandem.config import AlgoConfig
from tandem.model.sequences import build_sequences, sequence_logprobs
from tandem.model.sharding import ShardedPolicy
from tandem.model.vision import EncodedImages, encode_images
from tandem_learner.comm import Comm
from tandem_learner.phases import Phases

MEANS = ("loss", "approx_kl", "clip_share", "logprob_gap", "entropy")  # over sampled tokens


@dataclass(frozen=True)
class UpdateSettings:
    """What stays the same from update to update. `forbidden`: int64 [F], ids that are never sampled."""

    processor: Qwen2VLImageProcessorPil
    image_id: int
    pad_id: int
    forbidden: Tensor
    temperature: float
    microbatch_tokens: int
    algo: AlgoConfig


@dataclass(frozen=True, slots=True)
class Tally:
    """Over the whole global batch: token means (see `MEANS`), the largest logprob gap, images encoded."""

    means: Mapping[str, float]
    largest_gap: float
    images: int


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


def accumulate_gradients(
    policy: ShardedPolicy,
    packed: Packed,
    images: Mapping[str, bytes],
    settings: UpdateSettings,
    comm: Comm,
    phases: Phases,
) -> Tally:
    """Leave the gradient of the token-mean loss over all `packed.tokens` in the policy's parameters. A
    collective.

    A rank with fewer microbatches than another runs a text-only row of weight zero, so that all reductions
    meet.

    Args:
        packed: the whole global batch, the same on every rank, with at least one token.
        images: PNG bytes by sha256.
    """
    mine, rounds = plan_rounds(packed.sequences, comm.rank, comm.world_size, settings.microbatch_tokens)
    with phases("vision"):
        encoded = _encode(policy, [packed.sequences[i] for batch in mine for i in batch], images, settings, comm)
    sums = torch.zeros(len(MEANS), device=comm.device, dtype=torch.float64)
    largest = torch.zeros((), device=comm.device)
    with phases("forward_backward"):
        for turn in range(rounds):
            policy.reduce_gradients(turn == rounds - 1)
            if turn < len(mine):
                loss, stats = _microbatch(policy, packed, mine[turn], encoded, settings, comm.device)
                sums += torch.stack([stats[name].double().sum() for name in MEANS])
                largest = torch.maximum(largest, stats["logprob_gap"].max())
            else:
                loss = _idle(policy, settings, comm.device)
            # FSDP averages gradients over ranks: the factor makes it their sum
            (loss * (comm.world_size / packed.tokens)).backward()
    with phases("vision"):
        encoded.backward()
    with phases("reduce"):
        totals = comm.sums({**dict(zip(MEANS, sums.tolist(), strict=True)), "images": float(len(encoded.grids))})
        gap = comm.largest({"gap": float(largest)})["gap"]
    return Tally({name: totals[name] / packed.tokens for name in MEANS}, gap, round(totals["images"]))


def _encode(
    policy: ShardedPolicy,
    sequences: Sequence[TrainSequence],
    images: Mapping[str, bytes],
    settings: UpdateSettings,
    comm: Comm,
) -> EncodedImages:
    """Each distinct image of this rank's sequences, once, in order of first use."""
    names = dict.fromkeys(image for sequence in sequences for image in sequence.images)
    return encode_images(
        policy.encoder,
        settings.processor,
        {name: images[name] for name in names},
        trainable=policy.trains_vision,
        chunk_patches=settings.microbatch_tokens,
        device=comm.device,
    )


def _microbatch(
    policy: ShardedPolicy,
    packed: Packed,
    indices: Sequence[int],
    encoded: EncodedImages,
    settings: UpdateSettings,
    device: torch.device,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Summed token loss of some sequences, and the per-token figures [M] over all their occurrences."""
    batch = build_sequences(
        [packed.sequences[i] for i in indices],
        encoded.grids,
        encoded.token_rows,
        settings.image_id,
        settings.pad_id,
    ).to(device)
    logprobs, entropy = sequence_logprobs(
        policy.model, batch, encoded, temperature=settings.temperature, forbidden=settings.forbidden
    )  # [K] each, K distinct tokens
    where, rollout, advantages = (t.to(device) for t in gather_occurrences([packed.occurrences[i] for i in indices]))
    loss, stats = clipped_policy_loss(
        logprobs[where],
        rollout,
        advantages,
        clip_low=settings.algo.clip_low,
        clip_high=settings.algo.clip_high,
    )  # [M], M sampled tokens
    return loss.sum(), {**stats, "loss": loss.detach(), "entropy": entropy[where]}


def gather_occurrences(occurrences: Sequence[Occurrences]) -> tuple[Tensor, Tensor, Tensor]:
    """Flatten: for each of M sampled tokens its index among the K distinct ones, rollout logprob and
    advantage.

    Returns:
        int64 [M], float32 [M], float32 [M].
    """
    where: list[Tensor] = []
    start = 0
    for item in occurrences:
        count, length = item.rollout_logprobs.shape  # C occurrences of T tokens
        where.append(torch.arange(start, start + length).repeat(count))
        start += length
    rollout = torch.cat([item.rollout_logprobs.flatten() for item in occurrences])
    advantages = torch.cat([item.advantages.repeat_interleave(item.rollout_logprobs.shape[1]) for item in occurrences])
    return torch.cat(where), rollout, advantages


def _idle(policy: ShardedPolicy, settings: UpdateSettings, device: torch.device) -> Tensor:
    """A loss of zero that runs through every layer."""
    row = TrainSequence((settings.pad_id, settings.pad_id), (), ((1, 2),))
    batch = build_sequences([row], {}, {}, settings.image_id, settings.pad_id).to(device)
    logprobs, _ = sequence_logprobs(
        policy.model, batch, None, temperature=settings.temperature, forbidden=settings.forbidden
    )
    return logprobs.sum() * 0.0
