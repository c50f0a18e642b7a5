"""Sections on the store of what is learned, and on how it gets to the engines."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from tandem.config.section import NonNegative, Positive, Section


class CheckpointConfig(Section):
    """The store, written by the checkpoint manager alone."""

    url: str = Field(default="", description="fsspec URL of the store; empty is `checkpoints` in the run directory.")
    shards: Literal["grpc", "shared_fs"] = Field(
        default="grpc",
        description="How ranks hand their shards over: sent, or written to `url`, a folder that they share with it.",
    )
    state_every: Positive = Field(
        default=10, description="Steps between saves of the training state; the last step is always saved."
    )
    keep: Positive = Field(default=3, description="Adapters and states kept, beside those a resume needs.")
    keep_best: NonNegative = Field(default=0, description="Adapters kept beside those, the best by `best_metric`.")
    best_metric: str = Field(
        default="rollout/solve_rate",
        description="What the best have most of: `rollout/solve_rate`, `eval_solve_rate` or another score of theirs.",
    )
    keep_every: NonNegative = Field(default=0, description="Versions divisible by it are kept, too; 0 keeps none so.")
    also_to: str = Field(
        default="", description="fsspec URL of a second store that all that is published is copied to; empty: none."
    )
    on_failure: Literal["stop", "go_on"] = Field(
        default="stop",
        description="Where a training state cannot be saved the run ends, or goes on without it until the next one; "
        "what was saved before stays. The last state must be saved.",
    )
    lease_s: Annotated[float, Field(ge=1, le=1e6)] = Field(
        default=15, description="A manager on another machine that shows no sign of life for so long is replaced."
    )

    @model_validator(mode="after")
    def _shared_is_a_folder(self) -> CheckpointConfig:
        if self.shards == "shared_fs" and "://" in self.url and not self.url.startswith(("file://", "local://")):
            raise ValueError(f"shards: shared_fs needs a folder, but url is {self.url}; set shards to grpc")
        return self

    @model_validator(mode="after")
    def _mirror_is_elsewhere(self) -> CheckpointConfig:
        if self.also_to and self.also_to.rstrip("/") == self.url.rstrip("/"):
            raise ValueError(f"also_to is url, {self.url}; a mirror is another place")
        return self


class SyncConfig(Section):
    """How a new adapter gets to the rollout replicas."""

    transport: Literal["shared_fs", "grpc"] = Field(
        default="shared_fs",
        description="From the store once it is published, or from the learner's ranks while that is being done.",
    )
    folder: str = Field(
        default="",
        description="Folder on a replica's machine for adapters sent to it; empty: /dev/shm where it has room for "
        "three of the largest, else a temporary folder.",
    )
