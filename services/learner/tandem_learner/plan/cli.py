"""`tandem plan`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from tandem.config import Config, load_recipe
from tandem_learner.plan import budgets, fits
from tandem_learner.plan.budgets import Budget, Saves, Sync
from tandem_learner.plan.fits import Verdict
from tandem_learner.plan.hardware import GIB, WORKERS
from tandem_learner.plan.shapes import Shapes, build, describe, step_bytes
from tandem_learner.plan.workload import Workload, imitates, workload


@dataclass(frozen=True, slots=True)
class Plan:
    """All that is foreseen of a recipe. `copies` of each budget there are; verdicts: what to take, then what not."""

    config: Config
    shapes: Shapes
    work: Workload
    saved: Saves
    moved: Sync
    bandwidth_mb_s: float
    kv_tokens: int
    budgets: tuple[tuple[int, Budget], ...]
    verdicts: tuple[Verdict, ...]


def plan(
    recipe: Annotated[Path, typer.Argument(help="YAML recipe, such as deploy/recipes/maze2d-qwen3vl-8b.yaml.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="key.sub=value, over the recipe.")] = None,
    model: Annotated[
        Path | None, typer.Option(help="Folder with the base model's config.json; no weights are needed.")
    ] = None,
    rank: Annotated[int | None, typer.Option(min=1, help="learner.lora.rank")] = None,
    gpus: Annotated[
        int | None, typer.Option(min=0, help="GPUs, one for each pair of replica and rank; 0: CPUs alone.")
    ] = None,
    bandwidth: Annotated[
        float | None, typer.Option(min=1, help="Of the shared file system, MB/s. Default: of the one that is named.")
    ] = None,
    sync_interval: Annotated[float, typer.Option(min=0.1, help="seconds between two policy versions")] = 60.0,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object; bytes throughout")] = False,
) -> None:
    """Foresee memory, checkpoints and bandwidth from the recipe and config.json alone, and what is large enough."""
    given = {"model.path": model, "learner.lora.rank": rank, "cluster.gpus": gpus}
    more = [f"{key}={value}" for key, value in given.items() if value is not None]
    if gpus:
        more += [f"rollout.replicas={gpus}", f"learner.world_size={gpus}"]
    made = foresee(load_recipe(recipe, [*(overrides or []), *more]), bandwidth, sync_interval)
    if as_json:
        typer.echo(json.dumps(as_dict(made)))
    else:
        show(made, Console())


def foresee(config: Config, bandwidth_mb_s: float | None, interval_s: float) -> Plan:
    """Raises UserError where the model folder, its config or the recipe's target modules cannot be."""
    network = build(config)
    shapes = describe(network, config)
    work = workload(config, shapes.vision.patch_size * shapes.vision.spatial_merge_size)
    sampled = work.rows_at_once * work.completion_tokens
    recompute = config.learner.activation_checkpointing
    step = step_bytes(network, work.rows_at_once, work.tokens, sampled, recompute=recompute)
    saved = budgets.saves(shapes, config)
    moved = budgets.sync(config, saved, interval_s)
    head = budgets.head(config, saved, work)
    rank = budgets.learner(config, shapes, work, step)
    system, holds = fits.smallest_file_system(config, shapes, saved, moved)
    verdicts = [fits.smallest_head(head), holds]
    ranks, replicas = config.learner.world_size, 0 if imitates(config) else config.rollout.replicas
    made: list[tuple[int, Budget]] = [(1, head), (ranks, rank[0])]
    if config.cluster.gpus:
        verdicts += fits.workers(config, shapes, work, rank)
        chosen = next((w for w, v in zip(WORKERS, verdicts[2:], strict=True) if v.fits), WORKERS[-1])
        replica = budgets.engine(config, shapes, chosen.gpu_memory)
        made += [(ranks, rank[1]), (replicas, replica.device), (replicas, replica.host)]
    else:
        replica = budgets.engine(config, shapes, None)
        made.append((replicas, replica.device))
        verdicts.append(fits.this_machine(made))
    through = bandwidth_mb_s or system.bandwidth
    budgeted = tuple(item for item in made if item[0])
    return Plan(config, shapes, work, saved, moved, through, replica.cache_tokens, budgeted, tuple(verdicts))


def as_dict(made: Plan) -> dict[str, Any]:
    """For machines: everything in bytes, MB/s (10^6) and seconds."""
    shapes = made.shapes
    return {
        "model": {
            "parameters": shapes.parameters,
            "trained_parameters": shapes.trained_parameters,
            "weights_bytes": shapes.weights,
            "kv_cache_bytes_per_token": budgets.kv_token(made.config, shapes),
            "kv_cache_tokens": made.kv_tokens,
        },
        "work": asdict(made.work),
        "checkpoint": {**asdict(made.saved), "kept_bytes": budgets.kept(made.config, made.saved)},
        "sync": {
            **asdict(made.moved),
            "bandwidth_mb_s": made.bandwidth_mb_s,
            "seconds": made.moved.seconds(made.bandwidth_mb_s),
        },
        "memory": [
            {"copies": copies, **asdict(budget), "at_rest": budget.at_rest, "total": budget.total}
            for copies, budget in made.budgets
        ],
        "verdicts": [asdict(verdict) for verdict in made.verdicts],
    }


def show(made: Plan, console: Console) -> None:
    """For people: columns, and a line on each machine."""
    shapes, saved, moved, work = made.shapes, made.saved, made.moved, made.work
    facts = [
        ("model", f"{shapes.parameters:,} parameters, {size(shapes.weights)}"),
        ("trained", f"{shapes.trained_parameters:,} parameters"),
        ("weights of a version", f"{size(saved.weights)}, float32"),
        ("training state", f"{size(saved.state)}; a save of both: {size(saved.weights + saved.state)}"),
        ("store, at most", size(budgets.kept(made.config, saved))),
        ("longest transcript", f"{work.tokens:,} tokens, {work.images} images of {work.image_tokens}"),
        ("KV cache", f"{size(budgets.kv_token(made.config, shapes))} a token"),
        ("sync of a version", f"{moved.seconds(made.bandwidth_mb_s):.2f} s at {made.bandwidth_mb_s:,.0f} MB/s"),
        ("", f"{size(moved.written)} written, {size(moved.read)} read by replicas"),
        ("bandwidth needed", f"{moved.needed_mb_s:.1f} MB/s on average, states included"),
    ]
    _table(console, "What it makes and moves", facts)
    for copies, budget in made.budgets:
        rest = f" ({size(budget.at_rest)} between steps)" if budget.peak else ""
        rows = [(part.name, size(part.bytes)) for part in (*budget.parts, *budget.peak) if part.bytes]
        _table(console, f"{budget.what}, {copies} x {size(budget.total)}{rest}", rows)
    _say(console, "What is large enough, and the margin of what is tightest")
    for verdict in made.verdicts:
        margin = size(verdict.margin) if verdict.margin >= 0 else f"-{size(-verdict.margin)}"
        _say(console, f"  {'fits    ' if verdict.fits else 'DOES NOT'} {verdict.what}: {margin}; {verdict.why}")
    if work.note:
        _say(console, work.note)


def size(count: float) -> str:
    """Bytes in words: KiB, MiB, GiB."""
    for unit, factor in (("GiB", GIB), ("MiB", 2**20)):
        if count >= factor:
            return f"{count / factor:,.2f} {unit}" if count < 100 * factor else f"{count / factor:,.0f} {unit}"
    return f"{count / 1024:.1f} KiB"


def _table(console: Console, title: str, rows: Sequence[Sequence[str]]) -> None:
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2))
    for row in rows:
        table.add_row(f"  {row[0]}", row[1])
    _say(console, title)
    console.print(table, highlight=False)
    console.print()


def _say(console: Console, line: str) -> None:
    console.print(line, highlight=False, soft_wrap=True, markup=False)


plan.typer_settings = {"no_args_is_help": True}  # type: ignore[attr-defined]
