"""Where a step's seconds went."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SECONDS = "seconds/"


def phases_of(row: Mapping[str, Any]) -> dict[str, float]:
    """Seconds by phase of the loop, of a row of metrics.jsonl, without parts of phases (`seconds/train/pack`)."""
    return {
        key.removeprefix(SECONDS): value
        for key, value in row.items()
        if key.startswith(SECONDS) and "/" not in key.removeprefix(SECONDS)
    }
