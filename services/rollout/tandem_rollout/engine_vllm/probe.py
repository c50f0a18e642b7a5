"""A fixed completion after a fixed image: its logprobs show which policy the engine serves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind

from tandem.model.chat import ChatFormat
from tandem.model.frames import Frame
from tandem.obs import get_logger
from tandem.types import DataCorrupt

log = get_logger(__name__)
TEXT = "('move', 0)"
# Where a B matrix's largest entry differs by this much, policies differ so that the probe shows it (by 4e-3 nats on
# the tests' tiny model): far more than in the last bits, as probes of one policy do where requests share their batches.
ACTS_ABOVE_B = 1e-3
SAME_POLICY = {"float32": 1e-5, "bfloat16": 0.0}  # nats of a token's logprob, at most
EXACT = "float32"  # in bfloat16 rounding can swallow what an adapter adds: it proves nothing


@dataclass(frozen=True, slots=True)
class Policy:
    """What is known of a policy: its name in errors, the largest |entry| of each B matrix, and its probe's logprobs
    (nats, one per token of the completion)."""

    name: str
    largest_b: Mapping[str, float]
    logprobs: tuple[float, ...]


def prompt(chat: ChatFormat) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Ids of the probe's prompt, with one placeholder, and of its completion."""
    return chat.first_prompt(TEXT, "", images=1), (*chat.encode(TEXT), chat.end_id)


def params() -> SamplingParams:
    """Nothing is drawn: the prompt's own logprobs are asked for."""
    return SamplingParams(
        temperature=0.0,
        max_tokens=1,
        prompt_logprobs=0,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def check_repeats(policy: Policy, again: Sequence[float], tolerance: float) -> None:
    """Hold a second probe against the first; `tolerance` in nats, of the sums.

    Raises:
        DataCorrupt: not finite, or not repeatable.
    """
    first, second = sum(policy.logprobs), sum(again)
    if not (math.isfinite(first) and abs(first - second) <= tolerance):
        raise DataCorrupt(f"adapter {policy.name}: probe logprobs {first} and {second}; not finite or not repeatable")


def check_acts(new: Policy, others: Sequence[Policy], dtype: str) -> None:
    """Hold a policy's probe against those of other policies: the base model's, and the one served before.

    Raises:
        DataCorrupt: the engine answers as under another one, though their adapters differ too much for that. Where
            `dtype` is not exact enough to be sure, this is logged.
    """
    for other in others:
        apart = max(
            (abs(new.largest_b.get(k, 0.0) - other.largest_b.get(k, 0.0)) for k in _names(new, other)), default=0
        )
        moved = max(abs(a - b) for a, b in zip(new.logprobs, other.logprobs, strict=True))
        if apart >= ACTS_ABOVE_B and moved <= SAME_POLICY[dtype]:
            found = f"adapter {new.name}: loaded, but the policy is still that of {other.name}"
            if dtype == EXACT:
                raise DataCorrupt(found)
            log.warning("%s, as far as the probe's logprobs tell in %s", found, dtype)


@lru_cache(maxsize=1)
def frame() -> Frame:
    """A gradient: every channel and patch differs."""
    y, x = np.mgrid[0:64, 0:64]
    pixels = np.stack([x * 4, y * 4, (x + y) * 2], axis=-1).astype(np.uint8)
    return Frame("probe", b"", pixels)


def _names(new: Policy, other: Policy) -> set[str]:
    return {*new.largest_b, *other.largest_b}
