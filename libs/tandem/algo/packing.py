"""Turns -> training sequences: merged where they extend each other, each distinct one forwarded once.

A transcript that grows is ONE sequence with a completion span per turn; a windowed context starts a new
sequence wherever a prompt does not extend what came before. Members of a group often see the same thing and
do the same thing: identical sequences (same ids, images, spans) are kept once, and their logprobs serve
every occurrence. That is exact, because a logprob depends on nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tandem.types import Turn


@dataclass(frozen=True, slots=True)
class TrainSequence:
    """One forward row: token ids, the sha256 of its images in order, [start, stop) of each completion."""

    ids: tuple[int, ...]
    images: tuple[str, ...]
    spans: tuple[tuple[int, int], ...]

    @property
    def completion_tokens(self) -> int:
        """Number of sampled tokens, T."""
        return sum(stop - start for start, stop in self.spans)


@dataclass(frozen=True, slots=True)
class Occurrences:
    """Who sampled one distinct sequence: C occurrences of its T completion tokens."""

    rollout_logprobs: Tensor  # float32 [C, T]
    advantages: Tensor  # float32 [C]


@dataclass(frozen=True, slots=True)
class Packed:
    """Distinct sequences in order of first occurrence; `tokens` counts the tokens of all occurrences."""

    sequences: tuple[TrainSequence, ...]
    occurrences: tuple[Occurrences, ...]
    tokens: int


def merge_turns(turns: Sequence[Turn]) -> list[tuple[TrainSequence, tuple[float, ...]]]:
    """A trajectory's training sequences, each with its completion tokens' rollout logprobs in order.

    A turn is merged into the sequence before it when its prompt starts with that sequence's ids and images.
    A turn without a completion token has nothing to learn and is left out.
    """
    found: list[tuple[TrainSequence, tuple[float, ...]]] = []
    ids: tuple[int, ...] = ()
    images: tuple[str, ...] = ()
    spans: tuple[tuple[int, int], ...] = ()
    logprobs: tuple[float, ...] = ()
    for turn in turns:
        if not turn.completion_ids:
            continue
        extends = spans and turn.prompt_ids[: len(ids)] == ids and turn.images[: len(images)] == images
        if not extends:
            found.append((TrainSequence(ids, images, spans), logprobs))
            spans, logprobs = (), ()
        start = len(turn.prompt_ids)
        ids, images = turn.prompt_ids + turn.completion_ids, turn.images
        spans += ((start, len(ids)),)
        logprobs += turn.rollout_logprobs
    found.append((TrainSequence(ids, images, spans), logprobs))
    return [(sequence, values) for sequence, values in found if sequence.spans]


def pack(trajectories: Sequence[Sequence[Turn]], advantages: Sequence[float]) -> tuple[Packed, dict[str, float]]:
    """Merge and deduplicate the turns of trajectories; `advantages` holds one number per trajectory.

    Metrics: `tokens` (sampled, all occurrences), `rows_total`, `rows_unique`, `row_tokens` (of distinct
    rows, prompts included).
    """
    rows: dict[TrainSequence, list[tuple[tuple[float, ...], float]]] = {}
    for turns, advantage in zip(trajectories, advantages, strict=True):
        for sequence, logprobs in merge_turns(turns):
            rows.setdefault(sequence, []).append((logprobs, advantage))
    occurrences = tuple(
        Occurrences(torch.tensor([logprobs for logprobs, _ in found]), torch.tensor([value for _, value in found]))
        for found in rows.values()
    )
    tokens = sum(item.rollout_logprobs.numel() for item in occurrences)
    return Packed(tuple(rows), occurrences, tokens), {
        "tokens": float(tokens),
        "rows_total": float(sum(len(item.advantages) for item in occurrences)),
        "rows_unique": float(len(rows)),
        "row_tokens": float(sum(len(sequence.ids) for sequence in rows)),
    }


def split_contiguous(weights: Sequence[int], parts: int) -> list[range]:
    """Cut 0..n-1 into `parts` runs of about equal weight, some perhaps empty; each item falls by its middle.

    Runs, because neighbours share images: an image is then encoded by one rank, or by two at a cut.
    """
    total, before = sum(weights), 0
    part_of: list[int] = []
    for weight in weights:
        middle = before + weight / 2
        part_of.append(min(int(middle * parts / total), parts - 1) if total else 0)
        before += weight
    cuts = [sum(part < p for part in part_of) for p in range(parts + 1)]
    return [range(cuts[p], cuts[p + 1]) for p in range(parts)]


def microbatches(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Group 0..n-1, longest first, so that rows times the longest row's length stays within `budget` tokens.

    A row longer than the budget stands alone. Deterministic: equal lengths keep their order.
    """
    found: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        current = found[-1] if found else []
        if current and (len(current) + 1) * lengths[current[0]] <= budget:
            current.append(index)
        else:
            found.append([index])
    return found
