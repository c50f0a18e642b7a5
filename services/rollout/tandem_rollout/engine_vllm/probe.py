"""A fixed completion after a fixed image: its logprob shows which policy the engine serves."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind

from tandem.model.chat import ChatFormat
from tandem.model.frames import Frame
from tandem.types import DataCorrupt
from tandem_rollout.engine import LocalAdapter

TEXT = "('move', 0)"
TOLERANCE = {
    "float32": 1e-3,
    "bfloat16": 0.5,
}  # between two probes of one adapter: batches differ, policies must not
ACTS_ABOVE_B = 1e-3  # an adapter whose B holds an entry this large must change the probe's logprob in float32


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


def check(first: float, second: float, bare: float, adapter: LocalAdapter | None, dtype: str) -> None:
    """Hold two probes of one policy against one another, and against the base model's (`bare`), all in nats.

    Raises:
        DataCorrupt: not finite, not repeatable, or the base model's where the adapter's B forbids it.
    """
    name = adapter.name if adapter else "the base model"
    if not (math.isfinite(first) and abs(first - second) <= TOLERANCE[dtype]):
        raise DataCorrupt(f"adapter {name}: probe logprobs {first} and {second}; not finite or not repeatable")
    must_act = adapter is not None and adapter.max_abs_b >= ACTS_ABOVE_B and dtype == "float32"
    if must_act and first == bare:
        raise DataCorrupt(f"adapter {name}: loaded, but the policy is still the base model's")


@lru_cache(maxsize=1)
def frame() -> Frame:
    """A gradient: every channel and patch differs."""
    y, x = np.mgrid[0:64, 0:64]
    pixels = np.stack([x * 4, y * 4, (x + y) * 2], axis=-1).astype(np.uint8)
    return Frame("probe", b"", pixels)
