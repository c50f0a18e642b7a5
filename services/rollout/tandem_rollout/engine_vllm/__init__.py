"""vLLM behind `tandem_rollout.engine.Engine`. The only package that imports vllm.

Call `environment.set_engine_environment()` before importing `engine`. vLLM's own process loads `mask`, on CPU `cpu`.
"""
