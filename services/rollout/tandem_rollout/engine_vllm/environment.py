"""Environment variables that must stand before vLLM (and its own process) starts."""

from __future__ import annotations

import os

_SETTINGS = {
    "HF_HUB_OFFLINE": "1",  # models are local folders; a look-up on a closed network only hangs
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # engine and worker share one process beside this one
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",  # forking beside gRPC's and Ray's threads may deadlock
    "VLLM_USE_V2_MODEL_RUNNER": "0",  # the interface that `ForbidTokens` is written for, on CPU and GPU alike
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # "auto" puts two replicas on one core
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",  # stdout is for this service's own one line
    "OMP_NUM_THREADS": "1",  # on shared cores a second intra-op thread slows small models down
}


def set_engine_environment() -> None:
    """Set them, leaving alone what the operator has set. Call before `engine_vllm` is imported."""
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
