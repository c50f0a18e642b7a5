"""References to weights: a rank's shard, and the adapter or model that the shards make."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class PublishKind(StrEnum):
    """What a set of shards joins into."""

    ADAPTER = "adapter"  # LoRA weights alone: what an engine loads
    MODEL = "model"  # all weights with the base model's config, tokenizer and processor: what `model.path` may name
    STATE = "state"  # the learner's training state: optimizer moments and step counters


@dataclass(frozen=True, slots=True)
class ShardRef:
    """One rank's part of one version, as the checkpoint manager holds it."""

    kind: PublishKind
    version: int
    rank: int
    world_size: int
    sha256: str
    size: int  # bytes
    generation: int = 0  # of the ranks: those of an older one give way


@dataclass(frozen=True, slots=True)
class AdapterRef:
    """A published adapter (or model, or training state): a folder at `url` whose manifest hashes to `sha256`.

    `name` is unique to the version, because vLLM keys its prefix cache by adapter name and path.
    """

    version: int
    url: str
    sha256: str
    name: str
    base_model: str  # fingerprint of the base model the adapter belongs to
    size: int  # bytes
