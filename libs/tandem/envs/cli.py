"""`tandem env`: look at environments without a model."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer
from PIL import Image

from tandem.envs.registry import env_ids, get_spec, make
from tandem.types import UserError

app = typer.Typer(help="Look at environments: maps, shortest paths, distributions.", no_args_is_help=True)


@app.command("list")
def list_envs() -> None:
    """Print all environment ids."""
    for env_id in env_ids():
        typer.echo(env_id)


@app.command()
def show(
    env_id: Annotated[str, typer.Argument(help="e.g. maze2d:easy")],
    seed: Annotated[int, typer.Option(min=0, help="task seed")] = 0,
    png: Annotated[Path | None, typer.Option(help="also save the first observation here")] = None,
) -> None:
    """Print the map of a task, its start, goal and shortest path."""
    describe = get_spec(env_id).describe
    typer.echo(describe(seed) if describe else f"{env_id} has no map of its tasks; --png saves what a model sees first")
    if png is None:
        return
    images = make(env_id).reset(seed).images
    if not images:
        raise UserError(f"{env_id} has no image to save")
    try:
        Image.fromarray(images[0]).save(png, format="PNG")
    except OSError as error:
        raise UserError(f"cannot write {png}: {error.strerror or error}") from error
    typer.echo(f"saved {png}")


@app.command()
def stats(
    env_id: Annotated[str, typer.Argument(help="e.g. maze2d:easy")],
    seeds: Annotated[int, typer.Option(min=1, help="task seeds 0 .. N-1")] = 1000,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object: moves -> share")] = False,
) -> None:
    """Print how the shortest paths (in moves) are distributed."""
    spec = get_spec(env_id)
    shortest = spec.shortest or spec.optimal_turns
    if shortest is None:
        raise UserError(f"{env_id} has no oracle: how long its tasks are is not known")
    counts = Counter(shortest(seed) for seed in range(seeds))
    shares = {str(moves): counts[moves] / seeds for moves in sorted(counts)}
    if as_json:
        typer.echo(json.dumps(shares))
        return
    typer.echo(f"{env_id}: shortest paths of {seeds} seeds")
    for moves, share in shares.items():
        typer.echo(f"{moves:>4} moves  {share:7.2%}")
