"""What a replica records of what it plays."""

from __future__ import annotations

from tandem.obs import instruments as of
from tandem.obs.metrics import count, observe
from tandem.types import Trajectory


def recorded(played: Trajectory, seconds: float) -> Trajectory:
    """An episode that has ended, however it did, counted."""
    count(of.EPISODES, stop_reason=str(played.stop_reason), solved=_word(played.solved))
    observe(of.EPISODE_TIME, seconds)
    for turn in played.turns:
        count(of.TURNS, parsed=_word(turn.parsed))
    count(of.TOKENS_GENERATED, sum(len(turn.completion_ids) for turn in played.turns))
    count(of.TOKENS_PROMPT, sum(len(turn.prompt_ids) for turn in played.turns))
    return played


def _word(value: bool) -> str:
    return "true" if value else "false"
