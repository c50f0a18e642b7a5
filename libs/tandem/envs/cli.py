"""`tandem env`: look at environments without a model."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer
from PIL import Image

from tandem.envs.checks import blaming
from tandem.envs.registry import OTHER_IDS, env_ids, get_spec
from tandem.types import UserError

app = typer.Typer(help="Look at environments: maps, shortest paths, distributions.", no_args_is_help=True)


@app.command("list")
def list_envs() -> None:
    """Print the built-in environment ids, and what else an id may be."""
    for env_id in (*env_ids(), *OTHER_IDS):
        typer.echo(env_id)


@app.command()
def show(
    env_id: Annotated[str, typer.Argument(help="e.g. maze2d:easy")],
    seed: Annotated[int, typer.Option(min=0, help="task seed")] = 0,
    png: Annotated[Path | None, typer.Option(help="also save the first observation here")] = None,
) -> None:
    """Print a task: its map and shortest solution where they are known, the instruction, the actions, the limit."""
    spec = get_spec(env_id)
    with blaming(env_id):
        env = spec.make()
        seen = env.reset(seed)
    typer.echo(spec.describe(seed) if spec.describe else seen.text or "no map; --png saves what a model sees first")
    typer.echo(f"instruction: {env.instruction}")
    typer.echo(f"actions: {', '.join(spec.actions) or 'text'}")
    typer.echo(f"turn limit: {spec.turn_limit or 'none of its own'}")
    env.close()
    if png is None:
        return
    if not seen.images:
        raise UserError(f"{env_id} has no image to save")
    try:
        Image.fromarray(seen.images[0]).save(png, format="PNG")
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
