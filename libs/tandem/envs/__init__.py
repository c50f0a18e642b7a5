"""Environments: a three-method protocol, a registry of named presets, and task seeds split by layout. No torch."""

from tandem.envs.protocol import Env, EnvSpec, Observation, StepResult
from tandem.envs.registry import env_ids, get_spec, make
from tandem.envs.tasks import SPLITS, seeds, split_of

__all__ = [
    "SPLITS",
    "Env",
    "EnvSpec",
    "Observation",
    "StepResult",
    "env_ids",
    "get_spec",
    "make",
    "seeds",
    "split_of",
]
