"""vLLM's worker on CPU, in vLLM's own process: LoRA without copying weights, seeds that survive chunked prompts."""

from __future__ import annotations

from typing import Any

import torch
from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU
from vllm.platforms import current_platform
from vllm.v1.worker.cpu_model_runner import CPUModelRunner
from vllm.v1.worker.cpu_worker import CPUWorker


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


class SeededRunner(CPUModelRunner):
    """Where a prompt is computed in parts, vLLM draws a token after each part and throws it away. It then winds a
    seeded generator back by an operation that CPU generators lack, which ends the engine. Starting such a generator
    again from its seed is the same here: nothing has been drawn from it that counts."""

    def _bookkeeping_sync(self, *args: Any, **kwargs: Any) -> Any:
        generators = self.input_batch.generators
        thrown_away = self.discard_request_mask.np[: self.input_batch.num_reqs].nonzero()[0].tolist()
        aside = {row: generators.pop(row) for row in thrown_away if row in generators}
        for generator in aside.values():
            generator.manual_seed(generator.initial_seed())
        try:
            return super()._bookkeeping_sync(*args, **kwargs)
        finally:
            generators.update(aside)


class CpuWorker(CPUWorker):
    """vLLM's CPU worker with the LoRA operators and the runner above. vLLM gives both no other place to be named."""

    def init_device(self) -> None:
        """Before the model is loaded."""
        super().init_device()
        self.model_runner.__class__ = SeededRunner
        name = f"{SegmentedLora.__module__}.{SegmentedLora.__qualname__}"
        type(current_platform).get_punica_wrapper = classmethod(lambda cls: name)  # type: ignore[method-assign]
