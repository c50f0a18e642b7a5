"""vLLM's own figures, as it tells them to whoever logs them: after every step of the engine."""

from __future__ import annotations

from typing import Any

from vllm.v1.metrics.loggers import StatLoggerBase

from tandem.obs import instruments as of
from tandem.obs.metrics import count, gauge


class Stats(StatLoggerBase):
    """Records them. vLLM makes one for each engine."""

    def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
        """Nothing of it is needed."""

    def record(
        self,
        scheduler_stats: Any,
        iteration_stats: Any,
        mm_cache_stats: Any = None,
        engine_idx: int = 0,
    ) -> None:
        """One step's."""
        if scheduler_stats is not None:
            gauge(of.ENGINE_RUNNING, scheduler_stats.num_running_reqs)
            gauge(of.ENGINE_WAITING, scheduler_stats.num_waiting_reqs + scheduler_stats.num_skipped_waiting_reqs)
            gauge(of.ENGINE_KV, scheduler_stats.kv_cache_usage)
            count(of.ENGINE_PREFIX_QUERIES, scheduler_stats.prefix_cache_stats.queries)
            count(of.ENGINE_PREFIX_HITS, scheduler_stats.prefix_cache_stats.hits)
        if iteration_stats is not None:
            count(of.ENGINE_PREEMPTIONS, iteration_stats.num_preempted_reqs)

    def log_engine_initialized(self) -> None:
        """Nothing is logged."""
