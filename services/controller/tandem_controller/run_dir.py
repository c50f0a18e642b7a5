"""The run directory: config as resolved, metrics.jsonl, checkpoints, report."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from tandem.config import Config, dump_yaml
from tandem.types import UserError


@dataclass(frozen=True, slots=True)
class RunDir:
    """A folder that is one run's own."""

    path: Path

    @property
    def metrics(self) -> Path:
        """One JSON object a line, one line a step."""
        return self.path / "metrics.jsonl"

    def log(self, row: dict[str, object]) -> None:
        """Append a line to metrics.jsonl."""
        with self.metrics.open("a") as file:
            file.write(json.dumps(row) + "\n")

    def rows(self) -> list[dict]:
        """All lines of metrics.jsonl; a last line cut short by a crash is left out."""
        if not self.metrics.exists():
            return []
        rows = []
        for line in self.metrics.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                rows.append(json.loads(line))
        return rows

    def forget_after(self, version: int) -> None:
        """Drop metric lines of steps beyond `version`: a resumed run makes them again."""
        kept = [row for row in self.rows() if row["version"] <= version]
        partial = self.metrics.with_suffix(".tmp")
        partial.write_text("".join(json.dumps(row) + "\n" for row in kept))
        partial.replace(self.metrics)


def write_json(path: Path, content: object) -> None:
    """Write a small JSON file whole or not at all."""
    partial = path.with_name(f"{path.name}.tmp")
    partial.write_text(json.dumps(content, indent=2) + "\n")
    partial.replace(path)


def open_run_dir(config: Config, resume: bool) -> RunDir:
    """Make the run's folder and write its config; with `resume`, take the existing one.

    Raises:
        UserError: the folder holds a run and `resume` is not asked for, or it holds none and it is; or it cannot be made.
    """
    path = Path(config.run.dir) / config.run.name
    used = (path / "config.yaml").exists()
    if used and not resume:
        raise UserError(f"{path} already holds a run; continue it with --resume, or choose another run.name")
    if resume and not used:
        raise UserError(f"{path} holds no run to resume; check run.dir and run.name")
    try:
        path.mkdir(parents=True, exist_ok=True)
        (path / "config.yaml").write_text(dump_yaml(config))
    except OSError as problem:
        raise UserError(f"{path}: cannot be written ({problem.strerror}); choose another run.dir") from problem
    return RunDir(path)


def with_store(config: Config) -> Config:
    """The config with the checkpoint store's URL filled in: by default inside the run directory."""
    if config.checkpoint.url:
        return config
    url = str((Path(config.run.dir) / config.run.name / "checkpoints").resolve())
    return config.model_copy(update={"checkpoint": config.checkpoint.model_copy(update={"url": url})})
