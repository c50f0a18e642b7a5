"""One frozen config tree for the whole run: a YAML recipe plus dotted overrides, every key known and checked."""

from tandem.config.cost import CostConfig, MachineConfig
from tandem.config.engine import EngineConfig, SimulatedConfig
from tandem.config.faults import FaultsConfig
from tandem.config.health import HealthConfig
from tandem.config.learner import AlgoConfig, CorrectionConfig, KlConfig, LearnerConfig, LoraConfig
from tandem.config.load import dump_yaml, load_recipe
from tandem.config.obs import ObsConfig
from tandem.config.security import SecurityConfig
from tandem.config.store import CheckpointConfig, SyncConfig
from tandem.config.trackers import TrackersConfig
from tandem.config.tree import (
    ClusterConfig,
    Config,
    EnvConfig,
    EvalConfig,
    ModelConfig,
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
    "CostConfig",
    "EngineConfig",
    "EnvConfig",
    "EvalConfig",
    "FaultsConfig",
    "HealthConfig",
    "KlConfig",
    "LearnerConfig",
    "LoraConfig",
    "MachineConfig",
    "ModelConfig",
    "ObsConfig",
    "RolloutConfig",
    "RunConfig",
    "SecurityConfig",
    "SftConfig",
    "SimulatedConfig",
    "SyncConfig",
    "TrackersConfig",
    "dump_yaml",
    "load_recipe",
]
