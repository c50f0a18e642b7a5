"""The config tree. Every field says what it is; `tandem train RECIPE --print-config` shows the resolved whole."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator


def _no_bool(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("Input should be a number")
    return value


Positive = Annotated[int, Field(ge=1), BeforeValidator(_no_bool)]
NonNegative = Annotated[int, Field(ge=0), BeforeValidator(_no_bool)]
Share = Annotated[float, Field(ge=0, le=1)]


class Section(BaseModel):
    """A frozen part of the tree that refuses keys it does not know and values of another type."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=False, allow_inf_nan=False)


class RunConfig(Section):
    """The run as a whole."""

    name: str = Field(
        default="run", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="Name; the run directory is `dir`/`name`."
    )
    dir: str = Field(default="runs", description="Folder that holds run directories.")
    seed: NonNegative = Field(default=0, description="Seed of task order, sampling and LoRA initialisation.")
    steps: Positive = Field(default=100, description="Optimizer steps (policy versions) to make.")
    deterministic: bool = Field(
        default=False, description="A synchronous run is a function of its config: two runs give the same bytes"
    )


class ModelConfig(Section):
    """The base model: frozen but for its adapter."""

    path: str = Field(description="Folder of the base model (config.json, safetensors, tokenizer, processor).")
    dtype: Literal["float32", "bfloat16"] = Field(
        default="float32", description="Of the frozen weights, in both engine and learner."
    )


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
    window: NonNegative = Field(default=0, description="Turns of context the model sees; 0 is the whole transcript.")
    min_solvable: Share = Field(
        default=0.99, description="Least share of tasks the turn limit must allow, by the oracle."
    )

    @property
    def max_images(self) -> int:
        """Most images in one prompt."""
        return (self.window or self.max_turns) * self.images_per_turn


class EngineConfig(Section):
    """The inference engine of one rollout replica (vLLM)."""

    max_model_len: Positive = Field(default=512, description="Longest transcript, in tokens.")
    max_num_seqs: Positive = Field(default=128, description="Most requests in one engine step.")
    max_num_batched_tokens: Positive = Field(default=8192, description="Most tokens in one engine step.")
    max_lora_rank: Positive = Field(default=32, description="Largest adapter rank the engine reserves room for.")
    kv_cache_gib: Annotated[float, Field(gt=0)] = Field(default=1.0, description="KV cache on CPU, GiB.")
    gpu_memory_utilization: Share = Field(default=0.5, description="Share of GPU memory the engine may take.")
    enforce_eager: bool = Field(default=True, description="No CUDA graphs.")
    request_timeout_s: Annotated[float, Field(gt=0)] = Field(default=120, description="Deadline of one engine request.")


class RolloutConfig(Section):
    """Rollouts: who plays, how much, how completions are drawn."""

    replicas: Positive = Field(default=1, description="Rollout replicas, one engine each.")
    groups_per_step: Positive = Field(default=32, description="Groups that make one optimizer step.")
    group_size: Annotated[int, Field(ge=2)] = Field(default=8, description="Trajectories per group.")
    max_refills: NonNegative = Field(
        default=0,
        description="Rounds of further seeds that replace groups whose members all fare alike (dynamic sampling).",
    )
    temperature: Annotated[float, Field(gt=0)] = Field(default=1.0, description="Of training rollouts.")
    max_tokens: Positive = Field(default=16, description="Longest completion, in tokens.")
    max_concurrent_episodes: Positive = Field(default=256, description="Episodes a replica plays at once.")
    episode_timeout_s: Annotated[float, Field(gt=0)] = Field(default=600, description="Deadline of one episode.")
    engine: EngineConfig = EngineConfig()


class LoraConfig(Section):
    """The adapter."""

    rank: Positive = Field(default=32, description="Rank of A and B.")
    alpha: Positive = Field(default=32, description="Scale: the update is (alpha / rank) * B A.")
    target_modules: str | tuple[str, ...] = Field(
        default=r".*language_model.*\.(q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj)",
        description="PEFT target modules: a regular expression over module names, or a list of suffixes.",
    )
    vision: bool = Field(
        default=False, description="True where `target_modules` reaches the vision tower: the engine must know."
    )


class KlConfig(Section):
    """The price of leaving the base model. The estimators: `tandem/algo/kl.py`."""

    coef: Annotated[float, Field(ge=0)] = Field(default=0.0, description="What a nat costs; 0: no forward pass for it.")
    estimator: Literal["k1", "k2", "k3"] = Field(
        default="k2", description="Of KL(policy || base) from a sampled token."
    )
    place: Literal["loss", "reward"] = Field(
        default="loss",
        description="In the loss, or taken off the return: summed over the trajectory, at the ratio's denominator.",
    )


class CorrectionConfig(Section):
    """Importance weights for the gap between engine and learner: `tandem/algo/correction.py`."""

    kind: Literal["none", "truncate", "mask"] = Field(
        default="none", description="Weights cut at `high`, or set to 0 outside `low` .. `high`. Needs ratio: learner."
    )
    level: Literal["token", "sequence"] = Field(
        default="token", description="A weight a token, or a training sequence."
    )
    low: Annotated[float, Field(ge=0)] = Field(default=0.5, description="Least weight that `mask` lets through.")
    high: Annotated[float, Field(gt=0)] = Field(default=2.0, description="Largest weight.")


class AlgoConfig(Section):
    """How groups become a loss. The algorithms and their papers: `tandem/algo/`, a page each."""

    advantage: Literal["grpo", "dr_grpo", "rloo", "reinforce_pp", "maxrl"] = Field(
        default="grpo", description="Returns to advantages."
    )
    loss: Literal["ppo_clip", "gspo", "cispo", "sft"] = Field(
        default="ppo_clip",
        description="Loss of a token. sft: likelihood of all that was completed; returns and group sizes play no part.",
    )
    clip_low: Annotated[float, Field(gt=0, lt=1)] = Field(
        default=0.2, description="Lower clip of the probability ratio."
    )
    clip_high: Annotated[float, Field(gt=0)] = Field(default=0.2, description="Upper clip of the probability ratio.")
    dual_clip: Annotated[float, Field(ge=0)] = Field(
        default=0.0, description="A negative advantage's loss grows no further than this ratio; 0 is off, else above 1."
    )
    ratio: Literal["rollout", "learner"] = Field(
        default="rollout",
        description="Whose logprobs are the ratio's denominator: the engine's, or the learner's own at the start of "
        "the step (one more forward pass, for all minibatches but the first). run.deterministic: always the learner's.",
    )
    aggregation: Literal["token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "seq_mean_token_sum_norm"] = Field(
        default="token_mean", description="Token losses to one loss; a sequence is a trajectory."
    )
    kl: KlConfig = KlConfig()
    entropy_coef: Annotated[float, Field(ge=0)] = Field(default=0.0, description="Bonus for a nat of entropy.")
    correction: CorrectionConfig = CorrectionConfig()
    drop_zero_variance: bool = Field(
        default=True, description="Leave out groups whose returns are all equal: no gradient."
    )
    mask_overlong: bool = Field(
        default=False,
        description="Leave trajectories cut by a token or context limit out of the loss, not out of the baseline.",
    )
    gap_warning: Annotated[float, Field(gt=0)] | None = Field(
        default=None,
        description="Warn where engine and learner differ by more than this on average, or ten times this anywhere, in "
        "nats; null: 1e-4 in float32, 2e-2 in bfloat16.",
    )

    @model_validator(mode="after")
    def _bounds_make_sense(self) -> AlgoConfig:
        if 0 < self.dual_clip <= 1:
            raise ValueError("dual_clip must be above 1, or 0 for none")
        if self.correction.low > self.correction.high:
            raise ValueError("correction.low is above correction.high; swap them")
        if self.supervised and (self.correction.kind != "none" or (self.kl.coef and self.kl.place == "reward")):
            raise ValueError("loss sft has neither ratio nor reward: correction.kind must be none, kl.place loss")
        return self

    @property
    def supervised(self) -> bool:
        """True where all that was completed is to be learned, whatever it earned."""
        return self.loss == "sft"


class LearnerConfig(Section):
    """The update."""

    world_size: Positive = Field(default=1, description="Learner ranks, one process (and GPU) each.")
    lr: Annotated[float, Field(gt=0)] = Field(default=1e-4, description="Peak learning rate of AdamW.")
    lr_final: Share = Field(
        default=1.0, description="Learning rate at the last step, as a share of `lr`; linear decay."
    )
    warmup_steps: NonNegative = Field(default=0, description="Steps of linear warm-up.")
    betas: tuple[float, float] = Field(default=(0.9, 0.999), description="AdamW betas.")
    weight_decay: Annotated[float, Field(ge=0)] = Field(default=0.0, description="AdamW weight decay.")
    max_grad_norm: Annotated[float, Field(gt=0)] = Field(default=1.0, description="Gradient norm is clipped to this.")
    minibatches: Positive = Field(
        default=1, description="Optimizer updates per policy version: the groups are split in so many parts."
    )
    microbatch_tokens: Positive = Field(
        default=16384, description="Most tokens (padding included) in one forward pass of a rank."
    )
    image_cache_gib: Annotated[float, Field(ge=0)] = Field(
        default=1.0,
        description="Host memory of a rank for images encoded by a frozen vision tower, GiB; the least used go first.",
    )
    activation_checkpointing: bool = Field(default=False, description="Recompute activations in the backward pass.")
    collective_timeout_s: Annotated[float, Field(gt=0)] = Field(default=600, description="Deadline of one collective.")
    trainable: Literal["lora", "full"] = Field(
        default="lora",
        description="What learns: an adapter, or all parameters (`tandem sft` alone: engines serve adapters).",
    )
    lora: LoraConfig = LoraConfig()
    algo: AlgoConfig = AlgoConfig()


class CheckpointConfig(Section):
    """The store, written by the checkpoint manager alone."""

    url: str = Field(default="", description="fsspec URL of the store; empty is `checkpoints` in the run directory.")
    state_every: Positive = Field(
        default=10, description="Steps between saves of the training state; the last step is always saved."
    )
    keep: Positive = Field(default=3, description="Adapters and states kept, beside those a resume needs.")


class ClusterConfig(Section):
    """Where the services run."""

    address: str = Field(default="", description="Ray address; empty uses RAY_ADDRESS, or starts a local Ray.")
    gpus: NonNegative = Field(
        default=0, description="GPUs in all, one for each pair of replica and rank; 0 runs on CPU."
    )
    cpus_per_worker: Annotated[float, Field(gt=0)] = Field(default=1, description="CPUs of one placement bundle.")
    start_timeout_s: Annotated[float, Field(gt=0)] = Field(
        default=300, description="Deadline for all services to be up."
    )
    checkpoint_port: Annotated[int, Field(ge=0, le=65535)] = Field(default=0, description="0 takes a free port.")


class EvalConfig(Section):
    """Evaluation before and after."""

    fixed: NonNegative = Field(default=64, description="Tasks of the fixed set.")
    heldout: NonNegative = Field(default=256, description="Unseen tasks.")
    samples: NonNegative = Field(
        default=4, description="Temperature-1 episodes per task of the fixed set (one on unseen tasks); 0: greedy only."
    )
    every: NonNegative = Field(
        default=0, description="Steps between greedy evaluations of the fixed set; 0: only before and after."
    )


class ObsConfig(Section):
    """Logs."""

    log_format: Literal["console", "json"] = "console"
    log_level: Literal["debug", "info", "warning", "error"] = "info"


class Config(Section):
    """The whole."""

    run: RunConfig = RunConfig()
    model: ModelConfig
    env: EnvConfig = EnvConfig()
    rollout: RolloutConfig = RolloutConfig()
    learner: LearnerConfig = LearnerConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    cluster: ClusterConfig = ClusterConfig()
    eval: EvalConfig = EvalConfig()
    obs: ObsConfig = ObsConfig()

    @model_validator(mode="after")
    def _adapter_fits_engine(self) -> Config:
        if self.learner.lora.rank > self.rollout.engine.max_lora_rank:
            raise ValueError(
                f"learner.lora.rank is {self.learner.lora.rank} but rollout.engine.max_lora_rank is "
                f"{self.rollout.engine.max_lora_rank}; raise the latter"
            )
        return self

    @model_validator(mode="after")
    def _minibatches_have_groups(self) -> Config:
        if self.learner.minibatches > self.rollout.groups_per_step:
            raise ValueError("learner.minibatches is more than rollout.groups_per_step; lower the former")
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
