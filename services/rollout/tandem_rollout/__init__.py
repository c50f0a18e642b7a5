"""The rollout service: plays multi-turn episodes with an inference engine, and serves one policy version."""
