"""Which versions may go. A pure function of what is in the store: a dry run is to call it and remove nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from tandem.types import PublishKind

Key: TypeAlias = tuple[PublishKind, int]  # kind and version
WEIGHTS = (PublishKind.ADAPTER, PublishKind.MODEL)
# Engines serve the adapter before the latest until each has loaded the latest, and may read its folder again.
LEAST = {PublishKind.ADAPTER: 2, PublishKind.MODEL: 1, PublishKind.STATE: 1}


@dataclass(frozen=True, slots=True)
class Retention:
    """What stays: of each kind the last `keep` and every `keep_every`-th version (0: none for that reason), and of
    adapters and models the `keep_best` with the highest `best_metric`."""

    keep: int
    keep_best: int = 0
    best_metric: str = ""
    keep_every: int = 0


@dataclass(frozen=True, slots=True)
class Stored:
    """What is published. `scores` are figures by name; a version without the metric is none of the best."""

    versions: Mapping[PublishKind, Collection[int]]
    scores: Mapping[Key, Mapping[str, float]]
    pinned: Collection[Key]

    @property
    def keys(self) -> set[Key]:
        """All versions of all kinds."""
        return {(kind, version) for kind, versions in self.versions.items() for version in versions}


def to_remove(stored: Stored, retention: Retention) -> tuple[Key, ...]:
    """The versions that no rule keeps, training states first, oldest first.

    Whatever the rules say these stay: what is pinned, the latest of each kind, the adapter before it, which engines may
    serve, and the weights of every state that stays, which a resume needs.
    """
    kept = {key for key in stored.keys if key in stored.pinned or _nth(key[1], retention.keep_every)}
    for kind, versions in stored.versions.items():
        kept |= {(kind, version) for version in sorted(versions)[-max(retention.keep, LEAST[kind]) :]}
    for kind in WEIGHTS:
        kept |= {(kind, version) for version in _best(stored, kind, retention)}
    kept |= {(kind, version) for state, version in tuple(kept) if state is PublishKind.STATE for kind in WEIGHTS}
    order = (PublishKind.STATE, *WEIGHTS)  # a state never outlives its weights, should the removal be cut short
    return tuple(sorted(stored.keys - kept, key=lambda key: (order.index(key[0]), key[1])))


def best_unknown(stored: Stored, retention: Retention) -> str:
    """One line where versions have scores but none has the one that tells the best; else empty."""
    told = sorted({name for scores in stored.scores.values() for name in scores})
    if not (retention.keep_best and told) or retention.best_metric in told:
        return ""
    return (
        f"no version has a score {retention.best_metric!r}, which checkpoint.best_metric names, so none is kept as one "
        f"of the best; they have: {', '.join(told)}"
    )


def _nth(version: int, every: int) -> bool:
    return every > 0 and version % every == 0


def _best(stored: Stored, kind: PublishKind, retention: Retention) -> list[int]:
    """The newer of two that are equally good."""
    figures = {
        version: stored.scores[kind, version][retention.best_metric]
        for version in stored.versions.get(kind, ())
        if retention.best_metric in stored.scores.get((kind, version), {})
    }
    return sorted(figures, key=lambda version: (figures[version], version), reverse=True)[: retention.keep_best]
