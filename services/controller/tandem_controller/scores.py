"""What a step has measured, told to the store beside the adapters that it was measured on: retention keeps the best."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from tandem.obs import get_logger
from tandem.types import NotFound, PublishKind, TandemError

log = get_logger(__name__)
Score = Callable[[PublishKind, int, Mapping[str, float]], Awaitable[None]]
PLAYED = ("rollout/solve_rate", "rollout/return_mean")  # of the version before, which the step has learned from
EVALUATED = ("eval_solve_rate",)  # of the version that the step has made


async def tell_scores(score: Score, row: Mapping[str, Any]) -> None:
    """Score the adapters that a row of metrics speaks of. Rollouts of several versions speak of none.

    No training ends for want of a score: what keeps it from the store is logged.
    """
    told: list[tuple[int, tuple[str, ...]]] = [(row["version"], EVALUATED)]
    if row.get("rollout/staleness_max") == 0:
        told.append((row["version"] - 1, PLAYED))
    for version, names in told:
        scores = {name: float(row[name]) for name in names if name in row and math.isfinite(row[name])}
        if not scores:
            continue
        try:
            await score(PublishKind.ADAPTER, version, scores)
        except NotFound:
            continue  # version 0 may be the bare base model, and retention may have removed another
        except TandemError as problem:
            log.warning("%s v%d goes without its scores: %s", PublishKind.ADAPTER, version, problem)
