"""What vLLM is started with, and what each request asks of it."""

from __future__ import annotations

from typing import Any

from vllm import SamplingParams
from vllm.platforms import current_platform
from vllm.sampling_params import RequestOutputKind

from tandem.config import Config
from tandem.types import Sampling
from tandem_rollout.base_model import BaseModel
from tandem_rollout.engine_vllm.mask import FORBIDDEN_KEY, ForbidTokens


def engine_args(config: Config, base: BaseModel, seed: int) -> dict[str, Any]:
    """Arguments of vLLM's AsyncEngineArgs."""
    engine, on_cpu = config.rollout.engine, current_platform.is_cpu()
    shared: dict[str, Any] = {
        "model": config.model.path,
        "dtype": config.model.dtype,
        "seed": seed,
        "max_model_len": engine.max_model_len,
        "max_num_seqs": engine.max_num_seqs,
        "max_num_batched_tokens": engine.max_num_batched_tokens,
        "enforce_eager": engine.enforce_eager,
        "enable_prefix_caching": True,
        "enable_lora": True,
        "max_loras": 1,
        "max_cpu_loras": 2,  # old and new side by side while the old one's requests end
        "max_lora_rank": engine.max_lora_rank,
        "enable_tower_connector_lora": config.learner.lora.vision,
        "lora_target_modules": list(base.lora_modules(config.learner.lora.vision)),
        "limit_mm_per_prompt": {"image": config.env.max_images, "video": 0},
        "logprobs_mode": "processed_logprobs",
        "logits_processors": [f"{ForbidTokens.__module__}:{ForbidTokens.__qualname__}"],
        "additional_config": {FORBIDDEN_KEY: list(base.forbidden_ids)},
        "generation_config": "vllm",  # sampling is the request's alone, nothing from the model folder
        "disable_log_stats": True,
        "use_tqdm_on_load": False,
    }
    if on_cpu:  # block_size: the CPU attention kernel takes multiples of 32
        return {
            **shared,
            "block_size": 32,
            "kv_cache_memory_bytes": int(engine.kv_cache_gib * 2**30),
            "mm_processor_cache_gb": 0.5,
            "worker_cls": "tandem_rollout.engine_vllm.cpu.CpuWorker",
        }
    if config.run.deterministic:  # else what is scheduled depends on which of two steps ends first
        shared["async_scheduling"] = False
    return {**shared, "gpu_memory_utilization": engine.gpu_memory_utilization, "enable_sleep_mode": True}


def sampling_params(sampling: Sampling, seed: int, end_id: int) -> SamplingParams:
    """vLLM's parameters: the sampled tokens' logprobs only, no detokenising, one answer at the end."""
    return SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        max_tokens=sampling.max_tokens,
        seed=seed if sampling.temperature > 0 else None,
        stop_token_ids=[end_id],
        logprobs=0,
        flat_logprobs=True,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
        skip_clone=True,  # this object is the request's alone
    )
