"""The policy model: loading a VLM, its chat format, pixels, and logprobs. Torch is imported by submodules only."""
