"""The section on trackers of experiments, which are told what a run measures beside metrics.jsonl."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from tandem.config.section import Section


class TrackersConfig(Section):
    """Each is an extra: `pip install tandem-controller[tensorboard]`, `[wandb]`, `[mlflow]`. None can harm a run."""

    kinds: tuple[Literal["tensorboard", "wandb", "mlflow"], ...] = Field(
        default=(), description="Who is told. Keys and servers are theirs to read: WANDB_API_KEY, MLFLOW_TRACKING_URI."
    )
    project: str = Field(
        default="tandem", min_length=1, description="The project of Weights & Biases, the experiment of MLflow."
    )
    tensorboard_dir: str = Field(
        default="", description="Folder of the event files; empty: `tensorboard` in the run directory."
    )
    wandb_entity: str = Field(default="", description="Team or user; empty: the key's own.")
    wandb_mode: Literal["online", "offline"] = Field(
        default="online", description="Offline writes to `wandb` in the run directory, for `wandb sync`."
    )
    mlflow_uri: str = Field(
        default="", description="Tracking server; empty: MLFLOW_TRACKING_URI, else the file `mlflow.db` in `run.dir`."
    )
    finish_s: Annotated[float, Field(gt=0, le=3600)] = Field(
        default=30, description="At the end of a run, how long a tracker may take for what it has not sent yet."
    )
