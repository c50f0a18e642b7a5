"""`tandem checkpoints`: every command takes the URL of a store, `checkpoint.url` of a run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from tandem.storage import (
    CONFIG_FILE,
    BlobStore,
    Published,
    Retention,
    VersionStore,
    acquire,
    pin,
    read_adapter,
    read_metadata,
    read_scores,
    survey,
    to_remove,
)
from tandem.storage.manifest import version_path
from tandem.types import DataCorrupt, NotFound, PublishKind, UserError
from tandem_checkpoint_manager.checkpoints.find import LATEST, find, open_store

app = typer.Typer(help="Look at a checkpoint store, export from it, let old versions go.", no_args_is_help=True)

Url = Annotated[str, typer.Argument(help="The store: a folder, s3://..., memory://...; checkpoint.url of a run.")]
Kind = Annotated[PublishKind, typer.Option(help="What to look at.")]
Which = Annotated[str, typer.Argument(help="A version's number, 'latest', or the URL of a published folder.")]
AsJson = Annotated[bool, typer.Option("--json", help="JSON instead of text.")]
SHORT = 12  # of a sha256


@app.command("list")
def list_versions(url: Url, as_json: AsJson = False) -> None:
    """All that is published: kind, version, size, time, base model, scores."""
    store = open_store(url)
    stored = survey(store)
    rows: list[dict[str, Any]] = []
    for kind in PublishKind:
        newest, _ = _latest(store, kind)
        for version in stored.versions[kind]:
            marks = ["latest"] if newest == version else []
            marks += ["pinned"] if (kind, version) in stored.pinned else []
            rows.append(
                {**_row(store, kind, version), "scores": stored.scores.get((kind, version), {}), "marks": marks}
            )
    if as_json:
        typer.echo(json.dumps(rows))
        return
    columns = ("kind", "version", "size", "published", "base model", "", "scores")
    _table(columns, [_cells(row) for row in rows])


@app.command()
def show(
    url: Url,
    which: Which = LATEST,
    kind: Kind = PublishKind.ADAPTER,
    norms: Annotated[bool, typer.Option(help="Norms of A, B and the update, module by module.")] = False,
    as_json: AsJson = False,
) -> None:
    """One version: files with their hashes, settings of the adapter, metadata, scores."""
    from tandem_checkpoint_manager.checkpoints.compare import module_norms  # noqa: PLC0415 - numpy only where needed

    store = open_store(url)
    found = find(store, kind, which)
    told: dict[str, Any] = {"url": found.ref.url, **_plain(found), "sha256": found.ref.sha256}
    if found.manifest.kind is PublishKind.ADAPTER:
        told["adapter_config"] = json.loads(BlobStore(found.ref.url).read(CONFIG_FILE))
    told["scores"] = read_scores(store, found.manifest.kind, found.manifest.version)
    if norms:
        told["modules"] = [asdict(module) for module in module_norms(found, read_adapter(found.ref))]
    if as_json:
        typer.echo(json.dumps(told))
        return
    files, modules = told.pop("files"), told.pop("modules", [])
    for name, value in told.items():
        for line in _lines(name, value):
            typer.echo(line)
    _table(("file", "size", "sha256"), [(name, f"{e['size']:,}", e["sha256"]) for name, e in files.items()])
    if modules:
        cells = [(m["module"], f"{m['a']:.4g}", f"{m['b']:.4g}", f"{m['update']:.4g}") for m in modules]
        _table(("module", "|A|", "|B|", "|update|"), cells)


@app.command()
def verify(
    url: Url,
    which: Annotated[str, typer.Argument(help="One version alone; default: all of all kinds.")] = "",
    kind: Annotated[PublishKind | None, typer.Option(help="Of one kind alone.")] = None,
) -> None:
    """Hash every file. Exit code 1, and the file's name, where one is damaged or missing."""
    store = open_store(url)
    checked = damaged = 0
    for each in [kind] if kind else list(PublishKind):
        newest, sound = _latest(store, each)
        damaged += not sound
        for version in store.versions(each):
            if which and which.removeprefix("v") != str(version) and (which, newest) != (LATEST, version):
                continue
            said, sound = _verified(store, each, version)
            checked, damaged = checked + 1, damaged + (not sound)
            typer.echo(said)
    if not checked:
        raise NotFound(f"store {store.blobs.url}: no version {which or 'of this kind'} is published")
    if damaged:
        raise typer.Exit(1)


@app.command()
def diff(
    url: Url,
    first: Which,
    second: Which,
    kind: Kind = PublishKind.ADAPTER,
    as_json: AsJson = False,
) -> None:
    """What differs between two versions: tensors, with the norm of the difference, and settings."""
    from tandem_checkpoint_manager.checkpoints.compare import compare  # noqa: PLC0415 - see `show`

    store = open_store(url)
    found = compare(find(store, kind, first), find(store, kind, second))
    if as_json:
        typer.echo(json.dumps(asdict(found)))
        return
    for name, (old, new) in found.settings.items():
        typer.echo(f"{name}: {old!r}, then {new!r}")
    cells = [
        (
            c.name,
            "" if c.difference is None else f"{c.difference:.4g}",
            "" if c.share is None else f"{c.share:.2%}",
            c.why,
        )
        for c in found.changes
    ]
    if cells:
        _table(("tensor", "|difference|", "of before", ""), cells)
    typer.echo(f"tensors that differ: {len(found.changes)}, equal: {found.equal}")


@app.command()
def export(
    url: Url,
    target: Annotated[Path, typer.Argument(help="Folder to write; it must not exist.")],
    which: Annotated[str, typer.Option("--version", help="Number, 'latest', or URL of a published folder.")] = LATEST,
    kind: Kind = PublishKind.ADAPTER,
    merged: Annotated[bool, typer.Option("--merged", help="The base model with the adapter merged.")] = False,
    model: Annotated[Path | None, typer.Option(help="With --merged: folder of the base model.")] = None,
) -> None:
    """Write a version as a folder: a PEFT adapter as published, or with --merged a whole model."""
    from tandem_checkpoint_manager.checkpoints import export as work  # noqa: PLC0415 - see `show`

    if merged != (model is not None):
        raise UserError("--merged and --model DIR, the base model's folder, go together")
    found = find(open_store(url), kind, which)
    what = f"{found.manifest.kind} v{found.manifest.version}"
    if model is not None:
        count = work.export_merged(found, model, target)
        typer.echo(f"{target}: {model} with {count} weights changed by {what}")
    else:
        work.export_folder(found, target)
        typer.echo(f"{target}: {what}, every file verified")


@app.command()
def prune(
    url: Url,
    keep: Annotated[int, typer.Option(min=1, help="Newest versions of each kind that stay.")],
    keep_best: Annotated[int, typer.Option(min=0, help="Best by --best-metric that stay.")] = 0,
    best_metric: Annotated[str, typer.Option(help="A score's name, as `list` shows it.")] = "rollout/solve_rate",
    keep_every: Annotated[int, typer.Option(min=0, help="Versions divisible by it stay; 0: none for that.")] = 0,
    yes: Annotated[bool, typer.Option("--yes", help="Remove them. Without it they are only listed.")] = False,
) -> None:
    """Let go what no rule keeps. Pinned versions, the latest, and the weights of states that stay always do."""
    retention = Retention(keep, keep_best, best_metric, keep_every)
    open_store(url)
    if not yes:
        store = VersionStore(url)
        _told(store, retention, "would remove")
        typer.echo("nothing is removed without --yes")
        return
    lease = acquire(url)  # refuses while a manager writes there
    try:
        store = VersionStore(url, lease.check)
        for kind, version in _told(store, retention, "removing"):
            store.remove(kind, version)
    finally:
        lease.release()


@app.command("pin")
def pin_version(
    url: Url,
    version: Annotated[int, typer.Argument(min=0)],
    kind: Kind = PublishKind.ADAPTER,
    undo: Annotated[bool, typer.Option("--undo", help="Leave it to the rules again.")] = False,
) -> None:
    """Keep a version from retention."""
    pin(open_store(url), kind, version, not undo)
    typer.echo(f"{kind} v{version} is {'no longer ' if undo else ''}pinned")


def _told(store: VersionStore, retention: Retention, word: str) -> tuple[tuple[PublishKind, int], ...]:
    going = to_remove(survey(store), retention)
    freed = 0
    for kind, version in going:
        row = _row(store, kind, version)
        freed += row["size"]
        typer.echo(f"{word} {kind} v{version}, {row['size']:,} bytes, published {row['published'] or 'unknown'}")
    typer.echo(f"{len(going)} versions, {freed:,} bytes")
    return going


def _latest(store: VersionStore, kind: PublishKind) -> tuple[int | None, bool]:
    """The version that the pointer names, and whether pointer and manifest are sound."""
    try:
        found = store.latest(kind)
    except DataCorrupt as problem:
        typer.echo(f"DAMAGED latest {kind}: {problem}", err=True)
        return None, False
    return (found.manifest.version if found else None), True


def _verified(store: VersionStore, kind: PublishKind, version: int) -> tuple[str, bool]:
    name = f"{kind} v{version}"
    try:
        found = store.find(kind, version)
        if found is None:
            return f"unfinished {name}: no manifest; the manager's next start removes it", True
        store.verify(found)
    except DataCorrupt as problem:
        return f"DAMAGED {name}: {problem}", False
    return f"ok {name}: {', '.join(found.manifest.files)}; {found.ref.size:,} bytes", True


def _row(store: VersionStore, kind: PublishKind, version: int) -> dict[str, Any]:
    """What a listing says of a version; a damaged manifest is named, not fatal."""
    when = store.blobs.modified(f"{version_path(kind, version)}/manifest.json")
    row = {"kind": str(kind), "version": version, "published": when.isoformat(timespec="seconds") if when else ""}
    try:
        found = store.find(kind, version)
    except DataCorrupt as problem:
        return {**row, "size": 0, "base_model": "", "damaged": str(problem)}
    if found is None:
        return {**row, "size": 0, "base_model": "", "damaged": "gone"}
    return {**row, "size": found.ref.size, "base_model": found.manifest.base_model, "damaged": ""}


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    scores = ", ".join(f"{name} {value:.4g}" for name, value in sorted(row["scores"].items()))
    marks = ", ".join([*row["marks"], *(["DAMAGED"] if row["damaged"] else [])])
    size, base = f"{row['size']:,}", row["base_model"][:SHORT]
    return row["kind"], f"v{row['version']}", size, row["published"], base, marks, scores


def _plain(found: Published) -> dict[str, Any]:
    return {**asdict(found.manifest), "kind": str(found.manifest.kind), "metadata": read_metadata(found)}


def _lines(name: str, value: Any) -> list[str]:
    """A value in lines; what is long is cut, `--json` has it whole."""
    if not isinstance(value, dict):
        return [f"{name}: {_cut(value)}"]
    return [
        f"{name}:",
        *(f"  {key}: {_cut(item)}" for key, item in sorted(value.items()) if item not in (None, {}, [])),
    ]


def _cut(value: Any, most: int = 160) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= most else f"{text[:most]}... ({len(text):,} characters)"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    table = Table(box=None, pad_edge=False)
    right = ("size", "|A|", "|B|", "|update|", "|difference|", "of before")
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console = Console()
    if not console.is_terminal:
        console = Console(width=1000)  # a file or a pipe wraps nothing
    console.print(table, markup=False, highlight=False)
