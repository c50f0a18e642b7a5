"""What runs in vLLM's own process: the mask over the vocabulary, and LoRA on CPU without copying weights."""

from __future__ import annotations

from typing import Any

import torch
from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU
from vllm.platforms import current_platform
from vllm.v1.sample.logits_processor import LogitsProcessor

FORBIDDEN_KEY = "tandem_forbidden_token_ids"


class ForbidTokens(LogitsProcessor):
    """Sets the logits of ids that must never be sampled to -inf, for the whole batch at once.

    It runs before temperature and softmax, so that greedy and sampled draws never pick one and the processed
    logprobs are normalised without them, as the learner's are. It is one index_fill a step, where a logit
    bias costs Python time for each request.
    """

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        forbidden = vllm_config.additional_config[FORBIDDEN_KEY]
        self.forbidden = torch.tensor(forbidden, dtype=torch.int64, device=device)  # [F]

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """logits float32 [requests, vocabulary], changed in place."""
        return logits.index_fill_(-1, self.forbidden, float("-inf"))

    def is_argmax_invariant(self) -> bool:
        """A forbidden id may be the argmax: greedy decoding needs this, too."""
        return False

    def update_state(self, batch_update: Any) -> None:
        """Nothing is kept per request."""


class SegmentedLora(PunicaWrapperCPU):
    """LoRA on CPU as two matrix products per run of tokens that share an adapter.

    vLLM's own CPU operators copy an adapter's matrices once for every token (80% of the engine's time on a
    tiny model), and where a batch mixes both kinds give tokens without an adapter (slot -1) the last slot's
    weights.
    """

    def update_metadata(
        self, mapping: Any, lora_index_to_id: list[int | None], max_loras: int, vocab_size: int, **kwargs: Any
    ) -> None:
        """Once per engine step: which runs of tokens use which adapter slot."""
        super().update_metadata(mapping, lora_index_to_id, max_loras, vocab_size, **kwargs)
        slots, lengths = torch.unique_consecutive(self.token_lora_indices, return_counts=True)
        ends = lengths.cumsum(0)
        runs = zip((ends - lengths).tolist(), ends.tolist(), slots.tolist(), strict=True)
        self.runs = [run for run in runs if run[2] >= 0]  # (first token, past the last token, adapter slot)

    def add_lora_linear(
        self,
        y: torch.Tensor,
        x: torch.Tensor,
        lora_a_stacked: tuple[torch.Tensor, ...],
        lora_b_stacked: tuple[torch.Tensor, ...],
        scale: float,
        output_slices: tuple[int, ...],
        *,
        buffer: tuple[torch.Tensor, ...] | None = None,
        **kwargs: Any,
    ) -> None:
        """y [tokens, out] += scale * x [tokens, in] @ A^T @ B^T, slice by slice of `out`.

        A: [slots, 1, rank, in], B: [slots, 1, slice of out, rank], one of each per slice.
        """
        for start, end, slot in self.runs:
            offset = 0
            for a, b, size in zip(lora_a_stacked, lora_b_stacked, output_slices, strict=True):
                low = x[start:end] @ a[slot, 0].T  # [run, rank]
                y[start:end, offset : offset + size].addmm_(low, b[slot, 0].T, alpha=scale)
                offset += size


def register() -> None:
    """vLLM's plug-in hook (entry point `vllm.general_plugins`), called in each of its processes."""
    if current_platform.is_cpu():
        name = f"{SegmentedLora.__module__}.{SegmentedLora.__qualname__}"
        type(current_platform).get_punica_wrapper = classmethod(lambda cls: name)  # pyright: ignore[reportAttributeAccessIssue]
