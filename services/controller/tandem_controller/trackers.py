"""The trackers themselves, over their makers' clients: see `tracking.Tracker`. Imported only where they are used."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tandem_controller.tracking import Tracked

FLUSH_S = 10
PARAMS, METRICS = 100, 1000  # that MLflow takes in one call
LONGEST_PARAM = 500  # characters
MLFLOW_STATES = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}
RUN_TAG = "tandem.run_id"


class TensorBoardTracker:
    """Event files. A resumed run writes to the same folder, and takes back what is shown of the steps made anew."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._writer: Any = None

    def start(self, run: Tracked) -> None:
        folder = Path(self._folder) / run.name if self._folder else run.folder / "tensorboard"
        again = run.version + 1 if folder.exists() else None
        self._writer = import_module("tensorboardX").SummaryWriter(
            str(folder), purge_step=again, flush_secs=FLUSH_S, filename_suffix=f".v{run.version}"
        )
        settings = "\n".join(f"| {name} | {value} |" for name, value in run.settings.items())
        self._writer.add_text("settings", f"| key | value |\n| --- | --- |\n{settings}", run.version)

    def log(self, step: int, row: Mapping[str, float]) -> None:
        for name, value in row.items():
            self._writer.add_scalar(name, value, step)

    def finish(self, summary: Mapping[str, str | float]) -> None:
        self._writer.close()


class WandbTracker:
    """A run of Weights & Biases under the run's own id. What it has of a step already stays."""

    def __init__(self, project: str, entity: str, mode: str) -> None:
        self._project, self._entity, self._mode = project, entity, mode
        self._run: Any = None
        self._first = 0

    def start(self, run: Tracked) -> None:
        wandb = import_module("wandb")
        self._run = wandb.init(
            project=self._project,
            entity=self._entity or None,
            id=run.run_id,
            name=run.name,
            resume="allow",
            mode=os.environ.get("WANDB_MODE") or self._mode,
            dir=str(run.folder),
            config=dict(run.settings),
            allow_val_change=True,
            settings=wandb.Settings(console="off", silent=True),
        )
        self._first = self._run.step

    def log(self, step: int, row: Mapping[str, float]) -> None:
        if step >= self._first:
            self._run.log(dict(row), step=step)

    def finish(self, summary: Mapping[str, str | float]) -> None:
        self._run.summary.update(dict(summary))
        self._run.finish(exit_code=1 if summary["state"] == "failed" else 0)


class MlflowTracker:
    """A run of MLflow, found again by a tag with the run's own id. What it has of a step already stays."""

    def __init__(self, experiment: str, uri: str, file: str) -> None:
        self._experiment, self._uri, self._file = experiment, uri, file
        self._client: Any = None
        self._entities: Any = None
        self._id, self._last = "", -1

    def start(self, run: Tracked) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # nobody asked for it
        self._entities = import_module("mlflow.entities")
        for name in ("mlflow", "alembic"):  # which it has set up by now
            logging.getLogger(name).setLevel(logging.WARNING)
        uri = self._uri or os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{self._file}"
        client = self._client = import_module("mlflow.tracking").MlflowClient(tracking_uri=uri)
        known = client.get_experiment_by_name(self._experiment)
        experiment = known.experiment_id if known else client.create_experiment(self._experiment)
        found = client.search_runs([experiment], f"tags.`{RUN_TAG}` = '{run.run_id}'", max_results=1)
        if found:
            self._id, self._last = found[0].info.run_id, self._last_step(found[0])  # its figures are as they are
            client.update_run(self._id, status="RUNNING")
            return
        self._id = client.create_run(experiment, run_name=run.name, tags={RUN_TAG: run.run_id}).info.run_id
        params = [self._entities.Param(key, str(value)[:LONGEST_PARAM]) for key, value in run.settings.items()]
        for start in range(0, len(params), PARAMS):
            client.log_batch(self._id, params=params[start : start + PARAMS])

    def log(self, step: int, row: Mapping[str, float]) -> None:
        if step <= self._last:
            return
        at = int(time.time() * 1000)
        metrics = [self._entities.Metric(_mlflow_name(name), value, at, step) for name, value in row.items()]
        for start in range(0, len(metrics), METRICS):
            self._client.log_batch(self._id, metrics=metrics[start : start + METRICS])

    def finish(self, summary: Mapping[str, str | float]) -> None:
        self._client.set_terminated(self._id, status=MLFLOW_STATES[str(summary["state"])])

    def _last_step(self, run: Any) -> int:
        histories = (self._client.get_metric_history(run.info.run_id, name) for name in run.data.metrics)
        return max((point.step for history in histories for point in history), default=-1)


def _mlflow_name(name: str) -> str:
    """With the characters that MLflow takes."""
    return "".join(c if c.isalnum() or c in "_-./ " else "_" for c in name)
