"""Learning-rate schedule."""

from __future__ import annotations


def learning_rate(version: int, *, peak: float, final_share: float, warmup_steps: int, steps: int) -> float:
    """Rate of the step that turns policy `version` into `version + 1`.

    Linear warm-up over `warmup_steps` (the first step already takes 1 / warmup_steps of what decay leaves),
    times linear decay from `peak` at the first step to `peak * final_share` at the last of `steps`, where it
    then stays.
    """
    done = min(version / (steps - 1), 1.0) if steps > 1 else 0.0
    decay = 1.0 - (1.0 - final_share) * done
    warmup = min((version + 1) / warmup_steps, 1.0) if warmup_steps else 1.0
    return peak * decay * warmup
