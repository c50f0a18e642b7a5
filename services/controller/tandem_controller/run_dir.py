"""The run directory: config as resolved, metrics.jsonl, checkpoints, report."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tandem.config import Config, dump_yaml
from tandem.obs import get_logger
from tandem.runtime import reach
from tandem.storage import VersionStore, latest, sync_folder
from tandem.types import DataCorrupt, NotFound, PublishKind, Unavailable, UserError
from tandem_controller.past import CONFIG_FILE, FACTS_FILE, Past, facts, pack_rows

log = get_logger(__name__)
SHOWN = 5  # runs named where the one asked for is not there


@dataclass(frozen=True, slots=True)
class RunDir:
    """A folder that is one run's own, and what is kept of the run with every saved state: see `past`."""

    path: Path
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def metrics(self) -> Path:
        """One JSON object a line, one line a step."""
        return self.path / "metrics.jsonl"

    def log(self, row: Mapping[str, object]) -> None:
        """Append a line to metrics.jsonl. Raises UserError where it cannot be written."""
        line = json.dumps({name: _finite(value) for name, value in row.items()}) + "\n"
        try:
            with self.metrics.open("a") as file:
                file.write(line)
        except OSError as problem:
            raise UserError(f"{self.metrics}: cannot be written ({problem.strerror}); free space there") from problem
        reach("controller/log/done")

    def metadata(self, version: int) -> dict[str, Any]:
        """What goes with the state of a version: what is known of the run, and its metrics up to there."""
        rows = (row for row in self.rows() if row["version"] <= version)
        return {**self.facts, "metrics": pack_rows(rows)}

    def rows(self) -> list[dict]:
        """All lines of metrics.jsonl; a last line cut short by a crash is left out.

        Raises:
            DataCorrupt: another line is no JSON object.
        """
        if not self.metrics.exists():
            return []
        rows = []
        for number, line in enumerate(self.metrics.read_bytes().splitlines(keepends=True), start=1):
            if line.endswith(b"\n"):
                rows.append(_row(line, f"{self.metrics} line {number}"))
        return rows


def _row(line: bytes, what: str) -> dict:
    try:
        row = json.loads(line)
    except ValueError as problem:
        raise DataCorrupt(f"{what}: no JSON ({problem}); remove that line") from problem
    if not isinstance(row, dict) or not isinstance(row.get("version"), int):
        raise DataCorrupt(f"{what}: no row of a step; remove that line")
    return row


def _finite(value: object) -> object:
    """The value, null where JSON has no number for it."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_json(path: Path, content: object) -> None:
    """Write a small JSON file whole or not at all."""
    write_text(path, json.dumps(content, indent=2) + "\n")


def write_text(path: Path, content: str) -> None:
    """Write a small file whole or not at all, also where the machine goes down."""
    partial = path.with_name(f"{path.name}.tmp")
    with partial.open("w") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    sync_folder(str(path.parent))


def find_run_dir(config: Config, resume: bool) -> Path:
    """The run's folder, untouched yet.

    Raises:
        UserError: the folder holds a run and `resume` is not asked for, or it is and nothing holds one.
    """
    path = Path(config.run.dir) / config.run.name
    used = (path / CONFIG_FILE).exists()
    if used and not resume:
        raise UserError(f"{path} already holds a run; continue it with --resume, or choose another run.name")
    if resume and not used and not any(VersionStore(config.checkpoint.url).versions(kind) for kind in PublishKind):
        raise UserError(
            f"{path} holds no run to resume, nor does {config.checkpoint.url}; check run.dir and run.name, "
            "or start it without --resume"
        )
    return path


def open_run_dir(path: Path, config: Config, past: Past) -> RunDir:
    """Make the folder and write what the run is. Metrics of steps after those it goes on from go: they are made again.

    Raises:
        UserError: the folder cannot be written.
    """
    run = RunDir(path, facts(config, past))
    rows = past.rows
    if rows is None or past.steps:
        rows = [row for row in run.rows() if row["version"] <= past.reached]
    try:
        path.mkdir(parents=True, exist_ok=True)
        write_json(path / FACTS_FILE, {name: run.facts[name] for name in ("run_id", "code")})
        write_text(path / CONFIG_FILE, dump_yaml(config))
        reach("controller/open/config")
        write_text(run.metrics, "".join(json.dumps(row) + "\n" for row in rows))
    except OSError as problem:
        raise UserError(f"{path}: cannot be written ({problem.strerror}); choose another run.dir") from problem
    reach("controller/open/done")
    return run


def unused_store(config: Config) -> None:
    """Nothing, where a fresh run can start.

    Raises:
        UserError: the checkpoint store, or its mirror as far as it can be reached, holds another run's versions.
    """
    for name, url in (("url", config.checkpoint.url), ("also_to", config.checkpoint.also_to)):
        for kind in PublishKind if url else ():
            try:
                found = latest(url, kind).ref
            except NotFound:
                continue
            except Unavailable as problem:
                if name == "url":
                    raise
                log.warning("%s", problem)  # a mirror that is down holds up nothing
                break
            raise UserError(
                f"checkpoint.{name} {url} holds another run's {kind} v{found.version}; "
                "choose another folder, or continue that run with --resume"
            )


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
    """The config as services in other folders need it: paths absolute, the store's URL filled in.

    By default the checkpoint store lies inside the run directory.
    """
    model = {"path": str(Path(config.model.path).resolve())}
    if config.model.adapter:
        model["adapter"] = absolute(config.model.adapter)
    security: dict[str, object] = {
        key: str(Path(value).resolve())
        for key in ("secret_file", "tls_dir")
        if (value := getattr(config.security, key))
    }
    security["adapters_from"] = tuple(map(absolute, config.security.adapters_from))
    changes = {
        "security": config.security.model_copy(update=security),
        "model": config.model.model_copy(update=model),
        "checkpoint": config.checkpoint.model_copy(
            update={
                "url": absolute(config.checkpoint.url) if config.checkpoint.url else _store_of(config),
                "also_to": config.checkpoint.also_to and absolute(config.checkpoint.also_to),
            }
        ),
    }
    return config.model_copy(update=changes)
