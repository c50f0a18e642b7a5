"""What a run is, kept with every saved state: enough to go on from the store alone, and to see what has changed since.

first start -> facts (run id, config, code) -> run.json, config.yaml, and with rows of metrics.jsonl every state
--resume    <- read_past <- the latest saved state; before the first, the run directory
"""

from __future__ import annotations

import base64
import json
import subprocess
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from itertools import takewhile
from pathlib import Path
from typing import Any
from uuid import uuid4

import yaml

from tandem.config import Config
from tandem.config.changes import Change, Effect, changes
from tandem.model.folder import fingerprint
from tandem.storage import Published, VersionStore, read_metadata
from tandem.types import DataCorrupt, PublishKind, UserError
from tandem_controller.journal import Journal, Position, Step

CONFIG_FILE = "config.yaml"
FACTS_FILE = "run.json"
GIT_TIMEOUT_S = 20


@dataclass(frozen=True, slots=True)
class Past:
    """What a run has left. All is empty, and `version` 0, for one that starts; `config` is as it was resolved then."""

    version: int = 0
    run_id: str = ""
    config: Mapping[str, Any] | None = None
    code: str = ""
    base_model: str = ""
    rows: tuple[dict[str, Any], ...] | None = None
    steps: tuple[Step, ...] = ()  # made since `version`, and known well enough to be learned again without being played

    @property
    def reached(self) -> int:
        """The version that the run goes on from."""
        return self.version + len(self.steps)

    @property
    def position(self) -> Position | None:
        """Where it was at `reached`; None where that is what is saved."""
        return self.steps[-1].after if self.steps else None


def facts(config: Config, past: Past) -> dict[str, Any]:
    """What is kept of a run. Its id is made at the first start and never changes."""
    return {"run_id": past.run_id or uuid4().hex, "code": code_version(), "config": config.model_dump(mode="json")}


def read_past(config: Config, folder: Path) -> Past:
    """What a run to be resumed has left in the store, and in its folder where the store says nothing of it.

    Raises:
        DataCorrupt: the latest saved state's description, or a file of the run directory, is damaged.
    """
    local = _read_folder(folder)
    state = latest_state(config)
    if state is None:
        return local
    saved = read_metadata(state)
    return Past(
        version=state.manifest.version,
        run_id=saved.get("run_id", local.run_id),
        config=saved.get("config", local.config),
        code=saved.get("code", local.code),
        base_model=state.manifest.base_model,
        rows=unpack_rows(saved["metrics"], state.ref.url) if "metrics" in saved else None,
    )


def latest_state(config: Config) -> Published | None:
    """The newest published training state. The pointer to the latest may be behind: a crash can come before it."""
    store = VersionStore(config.checkpoint.url)
    found = (store.find(PublishKind.STATE, version) for version in reversed(store.versions(PublishKind.STATE)))
    return next((state for state in found if state is not None), None)


def compare(past: Past, config: Config, force: bool) -> tuple[str, ...]:
    """What has changed since the run was saved, a line each.

    Raises:
        UserError: what makes it another run, unless `force`.
    """
    found = changes(past.config, config) if past.config is not None else ()
    found = tuple(change for change in found if not _same_model(change, past))
    dangerous = [change for change in found if change.effect is Effect.DANGEROUS]
    if dangerous and not force:
        raise UserError(
            f"run {config.run.name} cannot go on with this recipe: {'; '.join(map(str, dangerous))}; "
            "give the old values, choose another run.name, or add --force"
        )
    code = code_version()
    newer = (f"code: {past.code} -> {code}",) if past.code not in ("", code) else ()
    return (*map(str, found), *newer)


def with_steps(past: Past, config: Config, folder: Path, journal: Journal, rows: Iterable[Mapping[str, Any]]) -> Past:
    """The past with the steps made since its state was saved: as far as they are in the journal and in the lines of
    metrics.jsonl, and came to an adapter that is there. None of them where what says how to play or to learn has
    changed since the run directory's config was written: they were made by that."""
    made_by = _read_folder(folder).config
    found = changes(made_by, config) if made_by is not None else ()
    if any(change.effect is not Effect.HARMLESS for change in found if not _same_model(change, past)):
        return past
    logged = {row["version"] for row in rows}
    published = set(VersionStore(config.checkpoint.url).versions(PublishKind.ADAPTER))
    steps = tuple(takewhile(lambda step: step.after.version in logged, journal.steps(past.version)))
    while steps and steps[-1].after.version not in published:
        steps = steps[:-1]
    return replace(past, steps=steps)


def _same_model(change: Change, past: Past) -> bool:
    """True where only the folder of the base model is another."""
    if change.key != "model.path":
        return False
    old = past.base_model
    if not old and (Path(change.old) / "config.json").is_file():
        old = fingerprint(change.old)
    return fingerprint(change.new) == old


def _read_folder(folder: Path) -> Past:
    config, about = None, {}
    try:
        if (file := folder / CONFIG_FILE).exists():
            config = yaml.safe_load(file.read_text())
        if (file := folder / FACTS_FILE).exists():
            about = json.loads(file.read_text())
    except (OSError, ValueError, yaml.YAMLError) as problem:
        raise DataCorrupt(f"{file}: cannot be read ({' '.join(str(problem).split())})") from problem
    return Past(run_id=about.get("run_id", ""), config=config, code=about.get("code", ""))


def code_version() -> str:
    """The package's version, with the git commit where the code is a repository's: `0.1.0+2f1c...-dirty`."""
    package, here = version("tandem-controller"), Path(__file__).resolve()
    if _git(here, "ls-files", "--error-unmatch", here.name) is None:  # what lies around it is someone else's repository
        return package
    commit = _git(here, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    return f"{package}+{commit}" if commit else package


def _git(file: Path, *arguments: str) -> str | None:
    command = ["git", "-C", str(file.parent), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=GIT_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def pack_rows(rows: Iterable[Mapping[str, Any]]) -> str:
    """Rows of metrics.jsonl as text of about a third of their size."""
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    return base64.b64encode(zlib.compress(lines.encode())).decode()


def unpack_rows(packed: str, where: str) -> tuple[dict[str, Any], ...]:
    """The rows again; `where` names the state. Raises DataCorrupt for what is none."""
    try:
        lines = zlib.decompress(base64.b64decode(packed)).decode().splitlines()
        return tuple(json.loads(line) for line in lines)
    except (ValueError, zlib.error) as problem:
        raise DataCorrupt(f"{where}: the metrics saved with it cannot be read ({problem})") from problem
