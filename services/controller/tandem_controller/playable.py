"""Could what was asked for be played at all?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tandem.obs import get_logger
from tandem.types import TandemError, TrajectoryGroup

log = get_logger(__name__)
WARN_SHARE = 0.1  # of a step's episodes


def check_played(what: str, groups: Sequence[TrajectoryGroup]) -> None:
    """Warn where more than a tenth of the episodes failed or had no turn: what the rest says is less than it seems.

    Raises:
        TandemError: none is left, so that there is nothing to learn from, and no figure to give.
    """
    episodes = [trajectory for group in groups for trajectory in group.trajectories]
    reasons = Counter(t.error or t.stop_reason for t in episodes if t.stop_reason.failed or not t.turns)
    count = reasons.total()
    if count <= WARN_SHARE * len(episodes):
        return
    why = f"mostly for this: {reasons.most_common(1)[0][0]}"
    if count == len(episodes):
        raise TandemError(f"{what}: not one of {count} episodes could be played, {why}")
    log.warning("%s: %d of %d episodes could not be played, %s", what, count, len(episodes), why)
