"""Tandem: multi-turn vision-language reinforcement learning on vLLM, FSDP and Ray."""
