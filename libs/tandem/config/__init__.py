"""One frozen config tree for the whole run: a YAML recipe plus dotted overrides, every key known and checked."""

from tandem.config.learner import AlgoConfig, CorrectionConfig, KlConfig, LearnerConfig, LoraConfig
from tandem.config.load import dump_yaml, load_recipe
from tandem.config.tree import (
    CheckpointConfig,
    ClusterConfig,
    Config,
    EngineConfig,
    EnvConfig,
    EvalConfig,
    ModelConfig,
    ObsConfig,
    RolloutConfig,
    RunConfig,
    SftConfig,
)

__all__ = [
    "AlgoConfig",
    "CheckpointConfig",
    "ClusterConfig",
    "Config",
    "CorrectionConfig",
    "EngineConfig",
    "EnvConfig",
    "EvalConfig",
    "KlConfig",
    "LearnerConfig",
    "LoraConfig",
    "ModelConfig",
    "ObsConfig",
    "RolloutConfig",
    "RunConfig",
    "SftConfig",
    "dump_yaml",
    "load_recipe",
]
