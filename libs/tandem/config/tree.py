"""The config tree. Every field says what it is; `tandem train RECIPE --print-config` shows the resolved whole."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from tandem.config.cost import CostConfig
from tandem.config.engine import EngineConfig
from tandem.config.faults import FaultsConfig
from tandem.config.health import HealthConfig
from tandem.config.learner import LearnerConfig
from tandem.config.obs import ObsConfig
from tandem.config.record import RecordConfig
from tandem.config.section import LEAST_TEMPERATURE, MOST_TEMPERATURE, NonNegative, Positive, Section, Share
from tandem.config.security import SecurityConfig
from tandem.config.store import CheckpointConfig, SyncConfig
from tandem.config.trackers import TrackersConfig


class RunConfig(Section):
    """The run as a whole."""

    name: str = Field(
        default="run", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="Name; the run directory is `dir`/`name`."
    )
    dir: str = Field(default="runs", description="Folder that holds run directories.")
    seed: NonNegative = Field(default=0, description="Seed of task order, sampling and LoRA initialisation.")
    steps: Positive = Field(default=100, description="Optimizer steps (policy versions) to make.")
    deterministic: bool = Field(
        default=False, description="A synchronous run is a function of its config: two runs give the same bytes."
    )


class ModelConfig(Section):
    """The base model: frozen but for its adapter."""

    path: str = Field(description="Folder of the base model (config.json, safetensors, tokenizer, processor).")
    adapter: str = Field(
        default="", description="Folder of a published adapter of it that training starts from; empty: a fresh one."
    )
    dtype: Literal["float32", "bfloat16"] = Field(
        default="float32", description="Of the frozen weights, in both engine and learner."
    )

    @property
    def probe_tolerance(self) -> float:
        """Nats between two probes of one policy: the batches they are computed in differ, policies must not."""
        return 1e-3 if self.dtype == "float32" else 0.5


class EnvConfig(Section):
    """The task."""

    id: str = Field(
        default="maze2d:tiny", description="Environment id with its options: `maze2d:tiny?style=night`, `gym:ID`, ..."
    )
    max_turns: Positive = Field(default=14, description="Turn limit of an episode.")
    images_per_turn: Positive = Field(default=1, description="Most images that one observation holds.")
    step_timeout_s: Annotated[float, Field(gt=0)] = Field(
        default=60, description="Deadline of one reset or step; an episode whose environment hangs has failed."
    )
    workers: Literal["threads", "processes"] = Field(
        default="threads",
        description="Threads of the replica run environments, or a process for each episode: a hung one is killed.",
    )
    window: NonNegative = Field(default=0, description="Turns of context the model sees; 0 is the whole transcript.")
    min_solvable: Share = Field(
        default=0.99, description="Least share of tasks the turn limit must allow, by the oracle."
    )

    @property
    def max_images(self) -> int:
        """Most images in one prompt."""
        return (self.window or self.max_turns) * self.images_per_turn


class RolloutConfig(Section):
    """Rollouts: who plays, how much, how completions are drawn."""

    replicas: Positive = Field(default=1, description="Rollout replicas, one engine each.")
    groups_per_step: Positive = Field(default=32, description="Groups that make one optimizer step.")
    group_size: Annotated[int, Field(ge=2)] = Field(default=8, description="Trajectories per group.")
    max_refills: NonNegative = Field(
        default=0,
        description="Rounds of further seeds that replace groups whose members all fare alike (dynamic sampling).",
    )
    max_staleness: NonNegative = Field(
        default=0,
        description="Policy versions by which a turn may lag when it is learned from. 0 is synchronous: engines wait "
        "for the learner. Above, so many steps are played ahead, engines stay awake and adapters change under way.",
    )
    temperature: Annotated[float, Field(ge=LEAST_TEMPERATURE, le=MOST_TEMPERATURE)] = Field(
        default=1.0, description="Of training rollouts."
    )
    max_tokens: Positive = Field(default=16, description="Longest completion, in tokens.")
    max_concurrent_episodes: Positive = Field(default=256, description="Episodes a replica plays at once.")
    episode_timeout_s: Annotated[float, Field(gt=0)] = Field(default=600, description="Deadline of one episode.")
    straggler_s: Annotated[float, Field(ge=0, le=1e6)] = Field(
        default=0,
        description="A group that takes longer is begun on another replica as well, with the same seeds: who ends "
        "first counts. 0: never.",
    )
    engine: EngineConfig = EngineConfig()


class SftConfig(Section):
    """Supervised fine-tuning, `tandem sft`: imitates an expert or recorded episodes, with `learner.algo.loss` sft."""

    episodes: str = Field(
        default="", description="Folder of recorded episodes to imitate; empty: the environment's expert plays."
    )
    solved_only: bool = Field(
        default=True, description="Of recorded episodes, imitate only those that solved the task."
    )
    skill: Share = Field(
        default=1.0, description="Share of turns that follow the expert; the others take any of the actions."
    )
    batch: Positive = Field(default=32, description="Episodes that make one optimizer step.")


class ClusterConfig(Section):
    """Where the services run."""

    address: str = Field(default="", description="Ray address; empty uses RAY_ADDRESS, or starts a local Ray.")
    gpus: NonNegative = Field(
        default=0, description="GPUs at most, one for each pair of replica and rank; 0 runs on CPU."
    )
    cpus_per_worker: Annotated[float, Field(gt=0)] = Field(default=1, description="CPUs of one placement bundle.")
    start_timeout_s: Annotated[float, Field(gt=0)] = Field(
        default=300, description="Deadline for all services to be up."
    )
    checkpoint_port: Annotated[int, Field(ge=0, le=65535)] = Field(default=0, description="0 takes a free port.")


class EvalConfig(Section):
    """Evaluation before and after: tasks of each suite, 0 leaves it out. None is ever trained on."""

    fixed: Annotated[NonNegative, Field(le=64)] = Field(default=64, description="Tasks of the suite fixed64.")
    heldout: NonNegative = Field(default=256, description="More unseen tasks.")
    styles: NonNegative = Field(default=64, description="Tasks of each look never trained on, where there are such.")
    larger: NonNegative = Field(default=64, description="Tasks of each larger size, where there are such.")
    train: NonNegative = Field(
        default=256, description="Training tasks, played only where the suite is named: to record what may be imitated."
    )
    samples: NonNegative = Field(
        default=4, description="Temperature-1 episodes per task of the fixed set (one on unseen tasks); 0: greedy only."
    )
    every: NonNegative = Field(
        default=0, description="Steps between greedy evaluations of the fixed set; 0: only before and after."
    )


class Config(Section):
    """The whole."""

    run: RunConfig = RunConfig()
    model: ModelConfig
    env: EnvConfig = EnvConfig()
    rollout: RolloutConfig = RolloutConfig()
    learner: LearnerConfig = LearnerConfig()
    sft: SftConfig = SftConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    sync: SyncConfig = SyncConfig()
    cluster: ClusterConfig = ClusterConfig()
    faults: FaultsConfig = FaultsConfig()
    health: HealthConfig = HealthConfig()
    security: SecurityConfig = SecurityConfig()
    eval: EvalConfig = EvalConfig()
    record: RecordConfig = RecordConfig()
    obs: ObsConfig = ObsConfig()
    trackers: TrackersConfig = TrackersConfig()
    cost: CostConfig = CostConfig()

    @property
    def store_url(self) -> str:
        """URL of the checkpoint store."""
        return self.checkpoint.url or str(Path(self.run.dir) / self.run.name / "checkpoints")

    @property
    def weight_places(self) -> tuple[str, ...]:
        """Where weights may be read that a request names: nothing else on the wire is a path."""
        named = (self.store_url, self.checkpoint.also_to, self.model.adapter, *self.security.adapters_from)
        return tuple(filter(None, named))

    @model_validator(mode="after")
    def _adapter_fits_engine(self) -> Config:
        if self.learner.lora.rank > self.rollout.engine.max_lora_rank:
            raise ValueError(
                f"learner.lora.rank is {self.learner.lora.rank} but rollout.engine.max_lora_rank is "
                f"{self.rollout.engine.max_lora_rank}; raise the latter"
            )
        return self

    @model_validator(mode="after")
    def _groups_fit_rounds(self) -> Config:
        if self.run.deterministic and self.rollout.group_size > self.rollout.max_concurrent_episodes:
            raise ValueError("run.deterministic plays whole groups at once; raise rollout.max_concurrent_episodes")
        return self

    @model_validator(mode="after")
    def _determinism_is_synchronous(self) -> Config:
        if self.run.deterministic and self.rollout.max_staleness:
            raise ValueError("run.deterministic is synchronous; set rollout.max_staleness to 0")
        return self

    @model_validator(mode="after")
    def _minibatches_have_groups(self) -> Config:
        groups, name = self.rollout.groups_per_step, "rollout.groups_per_step"
        if self.learner.algo.supervised:
            groups, name = self.sft.batch, "sft.batch"
        if self.learner.minibatches > groups:
            raise ValueError(f"learner.minibatches is more than {name}; lower the former")
        return self

    @model_validator(mode="after")
    def _refills_replace_what_is_dropped(self) -> Config:
        if self.rollout.max_refills and not self.learner.algo.drop_zero_variance:
            raise ValueError(
                "rollout.max_refills replaces the groups that learner.algo.drop_zero_variance false keeps; "
                "set one of them back"
            )
        return self

    @property
    def learner_ratio(self) -> bool:
        """True where the ratio's denominator is the learner's own."""
        algo = self.learner.algo
        return not algo.supervised and (self.run.deterministic or algo.ratio == "learner")

    @model_validator(mode="after")
    def _base_is_still_there(self) -> Config:
        if self.learner.algo.kl.coef and self.learner.trainable == "full":
            raise ValueError(
                "learner.algo.kl compares with the base model, which learner.trainable full changes; "
                "set learner.algo.kl.coef to 0, or train lora"
            )
        return self

    @model_validator(mode="after")
    def _correction_counts_once(self) -> Config:
        if self.learner.algo.correction.kind != "none" and not self.learner_ratio:
            raise ValueError(
                "learner.algo.correction weighs by what the ratio to the rollout's logprobs already holds; "
                "set learner.algo.ratio to learner, or correction.kind to none"
            )
        return self
