"""The section on what a rollout replica generates with."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from tandem.config.section import Positive, Section, Share


class SimulatedConfig(Section):
    """What is pretended where `kind` is simulated."""

    turn_s: Annotated[float, Field(ge=0, le=1e4)] = Field(
        default=0, description="Median seconds that an engine request takes."
    )
    spread: Annotated[float, Field(ge=0, le=3)] = Field(
        default=0, description="Of these times about the median: the standard deviation of their logarithm."
    )


class EngineConfig(Section):
    """What one rollout replica generates with."""

    kind: Literal["vllm", "simulated"] = Field(
        default="vllm",
        description="vLLM, or none at all: answers and logprobs are made up. It rehearses a cluster, its faults and "
        "its limits without GPUs; what is learned from it means nothing.",
    )
    max_model_len: Positive = Field(default=512, description="Longest transcript, in tokens.")
    max_num_seqs: Positive = Field(default=128, description="Most requests in one engine step.")
    max_num_batched_tokens: Positive = Field(default=8192, description="Most tokens in one engine step.")
    max_lora_rank: Positive = Field(default=32, description="Largest adapter rank the engine reserves room for.")
    kv_cache_gib: Annotated[float, Field(gt=0)] = Field(default=1.0, description="KV cache on CPU, GiB.")
    gpu_memory_utilization: Share = Field(default=0.5, description="Share of GPU memory the engine may take.")
    enforce_eager: bool = Field(default=True, description="No CUDA graphs.")
    request_timeout_s: Annotated[float, Field(gt=0)] = Field(default=120, description="Deadline of one engine request.")
    simulated: SimulatedConfig = SimulatedConfig()
