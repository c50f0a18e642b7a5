"""What rank 0 records of a step: its figures, as instruments."""

from __future__ import annotations

from collections.abc import Mapping

from tandem.obs import instruments as of
from tandem.obs.metrics import count, gauge

GAUGES: Mapping[of.Gauge, str] = {
    of.LOSS: "loss",
    of.GRADIENT_NORM: "grad_norm",
    of.LEARNING_RATE: "lr",
    of.ADVANTAGE_STD: "advantage_std",
    of.ADVANTAGE_MAX: "advantage_max",
    of.ADVANTAGE_MIN: "advantage_min",
    of.ENTROPY: "entropy",
    of.KL: "approx_kl",
    of.REF_KL: "ref_kl",
    of.CLIPPED: "clip_share",
    of.GAP_MEAN: "rollout_learner_logprob_gap_mean",
    of.GAP_MAX: "rollout_learner_logprob_gap_max",
}
COUNTERS: Mapping[of.Counter, str] = {
    of.UPDATES: "updates",
    of.UPDATES_SKIPPED: "skipped_updates",
    of.TOKENS_LEARNED: "tokens",
}
PHASE = "seconds/train/"


def record_step(figures: Mapping[str, float]) -> None:
    """A step is done; a figure that it does not have, as a step without an update has no entropy, stays as it was."""
    for instrument, name in GAUGES.items():
        if name in figures:
            gauge(instrument, figures[name])
    for counter, name in COUNTERS.items():
        count(counter, figures.get(name, 0.0))
    for name, seconds in figures.items():
        if name.startswith(PHASE) and name != f"{PHASE}all":
            count(of.LEARNER_PHASE, seconds, phase=name.removeprefix(PHASE))
