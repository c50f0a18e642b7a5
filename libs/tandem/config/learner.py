"""The learner's part of the config tree, algorithms included."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from tandem.config.section import NonNegative, Positive, Section, Share


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

    coef: Annotated[float, Field(ge=0, le=1000)] = Field(
        default=0.0, description="What a nat costs; 0: no forward pass for it."
    )
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


# What a loss does not look at must stay at its default: set, it would look as if it did something.
UNUSED = {
    "cispo": ("dual_clip",),
    "sft": (
        *("advantage", "clip_low", "clip_high", "dual_clip", "ratio", "correction"),
        *("drop_zero_variance", "gap_warning"),
    ),
}


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
    entropy_coef: Annotated[float, Field(ge=0, le=1000)] = Field(default=0.0, description="Bonus for a nat of entropy.")
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
        return self

    @model_validator(mode="after")
    def _settings_have_an_effect(self) -> AlgoConfig:
        fields = type(self).model_fields
        for name in UNUSED.get(self.loss, ()):
            if getattr(self, name) != fields[name].default:
                raise ValueError(f"learner.algo.{name} has no effect with loss {self.loss}; leave it out")
        return self

    @model_validator(mode="after")
    def _kl_makes_sense_where_it_is(self) -> AlgoConfig:
        in_reward = self.kl.place == "reward"
        if self.kl.coef and in_reward and self.supervised:
            raise ValueError("loss sft has no reward; set kl.place to loss")
        if self.kl.coef and in_reward and self.advantage == "maxrl":
            raise ValueError("maxrl needs returns that are not negative; set kl.place to loss")
        if self.kl.coef and not in_reward and self.kl.estimator == "k1":
            raise ValueError("kl.estimator k1 in the loss is only noise; take k2, or set kl.place to reward")
        return self

    @property
    def supervised(self) -> bool:
        """True where all that was completed is to be learned, whatever it earned."""
        return self.loss == "sft"


class LearnerConfig(Section):
    """The update."""

    world_size: Positive = Field(default=1, description="Learner ranks, one process (and GPU) each.")
    lr: Annotated[float, Field(gt=0, le=1)] = Field(default=1e-4, description="Peak learning rate of AdamW.")
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
    heartbeat_s: Annotated[float, Field(gt=0)] = Field(
        default=30,
        description="A rank that is silent for so long (stopped, or its node cut off) is lost; one whose process ends "
        "is noticed at once.",
    )
    trainable: Literal["lora", "full"] = Field(
        default="lora",
        description="What learns: an adapter, or all parameters (`tandem sft` alone: engines serve adapters).",
    )
    lora: LoraConfig = LoraConfig()
    algo: AlgoConfig = AlgoConfig()
