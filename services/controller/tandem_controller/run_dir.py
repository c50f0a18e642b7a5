"""The run directory: config as resolved, metrics.jsonl, checkpoints, report."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

from tandem.config import Config, dump_yaml
from tandem.storage import latest
from tandem.types import NotFound, PublishKind, UserError

CONFIG_FILE = "config.yaml"
SHOWN = 5  # runs named where the one asked for is not there


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
            file.write(json.dumps({name: _finite(value) for name, value in row.items()}) + "\n")

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


def _finite(value: object) -> object:
    """The value, null where JSON has no number for it."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_json(path: Path, content: object) -> None:
    """Write a small JSON file whole or not at all."""
    partial = path.with_name(f"{path.name}.tmp")
    partial.write_text(json.dumps(content, indent=2) + "\n")
    partial.replace(path)


def find_run_dir(config: Config, resume: bool) -> RunDir:
    """The run's folder, untouched yet.

    Raises:
        UserError: the folder holds a run and `resume` is not asked for, or it holds none and it is.
    """
    path = Path(config.run.dir) / config.run.name
    used = (path / CONFIG_FILE).exists()
    if used and not resume:
        raise UserError(f"{path} already holds a run; continue it with --resume, or choose another run.name")
    if resume and not used:
        raise UserError(f"{path} holds no run to resume; check run.dir and run.name")
    return RunDir(path)


def open_run_dir(run: RunDir, config: Config, version: int) -> None:
    """Make the folder, write the config, and forget metrics of steps after `version`, which will be made again.

    Raises:
        UserError: the folder cannot be written.
    """
    try:
        run.path.mkdir(parents=True, exist_ok=True)
        (run.path / CONFIG_FILE).write_text(dump_yaml(config))
        run.forget_after(version)
    except OSError as problem:
        raise UserError(f"{run.path}: cannot be written ({problem.strerror}); choose another run.dir") from problem


def saved_version(config: Config) -> int:
    """The version that a resumed run continues from: the latest saved training state's, or 0 where none was saved."""
    try:
        return latest(config.checkpoint.url, PublishKind.STATE).ref.version
    except NotFound:
        return 0


def unused_store(config: Config) -> int:
    """Version 0, where a fresh run starts.

    Raises:
        UserError: the checkpoint store holds another run's versions.
    """
    for kind in PublishKind:
        try:
            found = latest(config.checkpoint.url, kind).ref
        except NotFound:
            continue
        raise UserError(
            f"checkpoint.url {config.checkpoint.url} holds another run's {kind} v{found.version}; "
            "choose another folder, or continue that run with --resume"
        )
    return 0


def known_run(config: Config) -> None:
    """Nothing, where the store of a resolved config may be there: it lies elsewhere than in a run directory, or in one.

    Raises:
        UserError: there is no such run.
    """
    runs, name = Path(config.run.dir), config.run.name
    if config.checkpoint.url != _store_of(config) or (runs / name).is_dir():
        return
    found = sorted(runs.glob(f"*/{CONFIG_FILE}"), key=lambda path: path.stat().st_mtime, reverse=True)
    newest = ", ".join(path.parent.name for path in found[:SHOWN]) or "none"
    more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    raise UserError(f"{runs} holds no run named {name}; it holds: {newest}{more}; check run.name and run.dir")


def _store_of(config: Config) -> str:
    return absolute(str(Path(config.run.dir) / config.run.name / "checkpoints"))


def absolute(url: str) -> str:
    """The URL; a relative path, which other processes would look for elsewhere, as an absolute one."""
    return url if "://" in url else str(Path(url).resolve())


def resolved(config: Config) -> Config:
    """The config as services in other folders need it: the model's path absolute, the store's URL filled in.

    By default the checkpoint store lies inside the run directory.
    """
    model = {"path": str(Path(config.model.path).resolve())}
    if config.model.adapter:
        model["adapter"] = absolute(config.model.adapter)
    changes = {
        "model": config.model.model_copy(update=model),
        "checkpoint": config.checkpoint.model_copy(
            update={"url": absolute(config.checkpoint.url) if config.checkpoint.url else _store_of(config)}
        ),
    }
    return config.model_copy(update=changes)
