"""The figures of a step's updates as the step's, and what is odd about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tandem.config import Config

SUMS = (
    *("tokens", "rows_total", "rows_unique", "row_tokens", "trajectories_used"),
    *("images", "images_cached", "skipped_updates"),
)
MEANS = ("loss", "grad_norm")  # over updates; all others are means over tokens
GAP = "rollout_learner_logprob_gap"
# Measured on a tiny model on CPU, at most: 1e-5 in float32, 2e-2 in bfloat16. Kernels alone stay below these; a stale
# adapter, another temperature or other image features do not. No GPU was measured.
MEAN_GAP = {"float32": 1e-4, "bfloat16": 2e-2}
LARGEST_GAP = 10  # times the mean's: single unlikely tokens differ by more


def combine(updates: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Sums of counts, means over updates or over tokens. The gap is the first update's: nothing had moved yet.

    Without an update loss and norm are those of nothing, 0, and there is no token to average over.
    """
    found = {name: sum((update[name] for update in updates), 0.0) for name in (*SUMS, *MEANS)}
    found |= {name: found[name] / max(len(updates), 1) for name in MEANS} | {"updates": float(len(updates))}
    if not updates:
        return found
    first = updates[0]
    if "logprob_gap" in first:
        found |= {f"{GAP}_max": first["largest_gap"], f"{GAP}_mean": first["logprob_gap"]}
    for name in sorted(set(first) - {*SUMS, *MEANS, "largest_gap", "logprob_gap"}):
        found[name] = sum(update[name] * update["tokens"] for update in updates) / found["tokens"]
    return found


def warnings(figures: Mapping[str, float], config: Config) -> list[str]:
    """What people should hear of a step."""
    said = [gap_warning(figures, config)]
    if skipped := figures["skipped_updates"]:
        said.append(f"{skipped:.0f} of {figures['updates']:.0f} updates skipped: loss or gradient was not finite")
    return [text for text in said if text]


def gap_warning(figures: Mapping[str, float], config: Config) -> str:
    """What is to be said of the gap between engine and learner; empty where it is what their kernels explain.

    Turns of older versions differ by what was learned since: where `rollout.max_staleness` allows them nothing is said.
    """
    if config.rollout.max_staleness:
        return ""
    limit = config.learner.algo.gap_warning or MEAN_GAP[config.model.dtype]
    mean, largest = (figures.get(f"{GAP}_{kind}", 0.0) for kind in ("mean", "max"))
    if mean <= limit and largest <= LARGEST_GAP * limit:
        return ""
    return (
        f"engine and learner disagree on the sampled tokens' logprobs by {mean:.1e} nats on average and {largest:.1e} "
        f"at most, where {limit:.0e} and {LARGEST_GAP * limit:.0e} are expected: are model, adapter and sampling the "
        "same? learner.algo.correction can make up for it"
    )
