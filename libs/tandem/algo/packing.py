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

    members: Tensor  # int64 [C]: the trajectories, 0..N-1
    rollout_logprobs: Tensor  # float32 [C, T]


@dataclass(frozen=True, slots=True)
class Packed:
    """N trajectories as distinct sequences in order of first occurrence. `lengths` int64 [N]: their sampled tokens."""

    sequences: tuple[TrainSequence, ...]
    occurrences: tuple[Occurrences, ...]
    lengths: Tensor

    @property
    def tokens(self) -> int:
        """Sampled tokens of all occurrences."""
        return int(self.lengths.sum())


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


def pack(trajectories: Sequence[Sequence[Turn]]) -> tuple[Packed, dict[str, float]]:
    """Merge and deduplicate the turns of N trajectories.

    Metrics: `tokens` (sampled, all occurrences), `rows_total`, `rows_unique`, `row_tokens` (of distinct
    rows, prompts included).
    """
    rows: dict[TrainSequence, list[tuple[int, tuple[float, ...]]]] = {}
    lengths = torch.zeros(len(trajectories), dtype=torch.int64)
    for member, turns in enumerate(trajectories):
        for sequence, logprobs in merge_turns(turns):
            rows.setdefault(sequence, []).append((member, logprobs))
            lengths[member] += len(logprobs)
    occurrences = tuple(
        Occurrences(torch.tensor([member for member, _ in found]), torch.tensor([logprobs for _, logprobs in found]))
        for found in rows.values()
    )
    packed = Packed(tuple(rows), occurrences, lengths)
    return packed, {
        "tokens": float(packed.tokens),
        "rows_total": float(sum(len(item.members) for item in occurrences)),
        "rows_unique": float(len(rows)),
        "row_tokens": float(sum(len(sequence.ids) for sequence in rows)),
    }


@dataclass(frozen=True, slots=True)
class Flat:
    """The M sampled tokens of some sequences, occurrence after occurrence.

    `distinct`: the token's index among the K distinct ones, sequence after sequence. `sequence`: which occurrence.
    """

    distinct: Tensor  # int64 [M]
    sequence: Tensor  # int64 [M]
    members: Tensor  # int64 [M]
    rollout_logprobs: Tensor  # float32 [M]

    def to(self, device: torch.device) -> Flat:
        """The same on a device."""
        return Flat(*(getattr(self, name).to(device) for name in self.__slots__))


def flatten(occurrences: Sequence[Occurrences]) -> Flat:
    """All tokens of all occurrences of some sequences, at least one."""
    distinct: list[Tensor] = []
    lengths: list[Tensor] = []
    start = 0
    for item in occurrences:
        count, length = item.rollout_logprobs.shape  # C occurrences of T tokens
        distinct.append(torch.arange(start, start + length).repeat(count))
        lengths.append(torch.full((count,), length))
        start += length
    tokens = torch.cat(lengths)  # [R], R occurrences
    return Flat(
        distinct=torch.cat(distinct),
        sequence=torch.arange(len(tokens)).repeat_interleave(tokens),
        members=torch.cat([item.members for item in occurrences]).repeat_interleave(tokens),
        rollout_logprobs=torch.cat([item.rollout_logprobs.flatten() for item in occurrences]),
    )


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
