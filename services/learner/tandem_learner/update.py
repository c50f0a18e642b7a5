"""The gradient of one optimizer update: forward, loss and backward by microbatch, figures summed over ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tandem.algo import Evidence, Packed, Tokens, figure_names, flatten, objective
from tandem.config import AlgoConfig
from tandem.model.sharding import ShardedPolicy
from tandem.model.vision import EncodedImages
from tandem.obs import span
from tandem.runtime import WAITS
from tandem_learner.comm import Comm
from tandem_learner.forward import ForwardSettings, Measured, encode, forward, idle, plan_rounds
from tandem_learner.phases import Phases


@dataclass(frozen=True)
class UpdateBatch:
    """What one update learns from, the whole global batch on every rank; packed, it has at least one token.

    `advantages` and `weights` (of each of its tokens) by trajectory. `start`: learner logprobs before the step moved
    anything, None where nothing has moved yet. `ref`: the base model's, None where no term asks for them.
    `learner_ratio`: the ratio's denominator is `start` instead of the rollout's logprobs.
    """

    packed: Packed
    images: Mapping[str, bytes]  # PNG bytes by sha256
    advantages: Tensor  # float32 [N]
    weights: Tensor  # float32 [N]
    learner_ratio: bool
    start: Measured | None = None
    ref: Measured | None = None


@dataclass(frozen=True, slots=True)
class Tally:
    """Over the whole global batch: the loss, token means of `figure_names`, the largest logprob gap, image counts."""

    loss: float
    means: Mapping[str, float]
    largest_gap: float
    images: int
    images_cached: int

    def figures(self) -> dict[str, float]:
        """All of it by name, for `figures.combine`."""
        counts = {"images": float(self.images), "images_cached": float(self.images_cached)}
        return {"loss": self.loss, **self.means, "largest_gap": self.largest_gap, **counts}


def accumulate_gradients(
    policy: ShardedPolicy,
    batch: UpdateBatch,
    algo: AlgoConfig,
    settings: ForwardSettings,
    comm: Comm,
    phases: Phases,
) -> Tally:
    """Leave the gradient of the batch's loss in the policy's parameters. A collective.

    A rank with fewer microbatches than another runs a text-only row of weight zero, so that all reductions
    meet.
    """
    packed, names = batch.packed, figure_names(algo)
    mine, rounds = plan_rounds(packed.sequences, comm.rank, comm.world_size, settings.microbatch_tokens)
    with phases("vision"):
        encoded = encode(policy, [packed.sequences[i] for rows in mine for i in rows], batch.images, settings, comm)
    total = torch.zeros((), device=comm.device, dtype=torch.float64)
    sums = torch.zeros(len(names), device=comm.device, dtype=torch.float64)
    largest = torch.zeros((), device=comm.device)
    with phases("forward_backward"):
        for turn in range(rounds):
            WAITS.progressed()
            policy.reduce_gradients(turn == rounds - 1)
            with span("forward"):
                if turn < len(mine):
                    loss, figures = _microbatch(policy, batch, mine[turn], encoded, algo, settings, comm.device)
                    total += loss.detach()
                    sums += torch.stack([figures[name].double().sum() for name in names])
                    gap = figures["logprob_gap"].max() if "logprob_gap" in names else largest
                    largest = torch.maximum(largest, gap)
                else:
                    loss = idle(policy, settings, comm.device)
            with span("backward"):
                (loss * comm.world_size).backward()  # FSDP averages gradients over ranks: the factor makes it their sum
    with phases("vision"):
        encoded.backward()
    with phases("reduce"):
        counts = {"images": float(len(encoded.grids)), "cached": float(encoded.cached)}
        totals = comm.sums({"loss": float(total), **dict(zip(names, sums.tolist(), strict=True)), **counts})
        widest = comm.largest({"gap": float(largest)})["gap"]
    means = {name: totals[name] / packed.tokens for name in names}
    return Tally(totals["loss"], means, widest, round(totals["images"]), round(totals["cached"]))


def _microbatch(
    policy: ShardedPolicy,
    batch: UpdateBatch,
    rows: Sequence[int],
    encoded: EncodedImages,
    algo: AlgoConfig,
    settings: ForwardSettings,
    device: torch.device,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The part of the loss that some rows make, and figures [M] of all their M sampled tokens."""
    logprobs, entropy = forward(policy, [batch.packed.sequences[i] for i in rows], encoded, settings, device)  # [K]
    flat = flatten([batch.packed.occurrences[i] for i in rows]).to(device)
    learner = logprobs[flat.distinct]  # [M]
    start = _of_rows(batch.start, rows)[flat.distinct] if batch.start is not None else learner.detach()
    tokens = Tokens(
        learner_logprobs=learner,
        anchor_logprobs=start if batch.learner_ratio else flat.rollout_logprobs,
        advantages=batch.advantages.to(device)[flat.members],
        sequence=flat.sequence,
    )
    evidence = Evidence(
        weights=batch.weights.to(device)[flat.members],
        rollout_logprobs=flat.rollout_logprobs,
        start_logprobs=start,
        ref_logprobs=_of_rows(batch.ref, rows)[flat.distinct] if batch.ref is not None else None,
        entropy=entropy[flat.distinct],
    )
    return objective(tokens, evidence, algo)


def _of_rows(measured: Measured, rows: Sequence[int]) -> Tensor:
    """Measured logprobs of some rows' distinct tokens, float32 [K]."""
    return torch.cat([measured[i] for i in rows])
