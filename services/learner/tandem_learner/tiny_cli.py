"""`tandem tiny`: make the tiny model. `pretrain` from nothing, `broaden` in other looks, `narrow` into a policy that RL
can improve."""

from __future__ import annotations

import json
import os
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import torch
import typer

from tandem.types import UserError
from tandem_learner.tiny import BROADEN, NarrowConfig, PretrainConfig, narrow, pretrain

app = typer.Typer(help="Make the tiny model, on one core.", no_args_is_help=True)

_Config = TypeVar("_Config", PretrainConfig, NarrowConfig)

Out = Annotated[Path, typer.Option(help="model folder to write")]
Base = Annotated[Path, typer.Option(help="pre-trained model folder")]
Seed = Annotated[int, typer.Option(min=0, help="of weights, data order and demonstrations")]
Overrides = Annotated[list[str] | None, typer.Argument(help="key=value of the training settings, e.g. steps=500")]


@app.command("pretrain")
def pretrain_command(out: Out, seed: Seed = 0, overrides: Overrides = None) -> None:
    """Broad capability from nothing: the oracle's direction from every room, where the disc is, which ways are open."""
    _prepare(out)
    _report(pretrain(None, out, _override(PretrainConfig(seed=seed), overrides or []), _log))


@app.command("broaden")
def broaden_command(base: Base, out: Out, seed: Seed = 0, overrides: Overrides = None) -> None:
    """More pre-training in ever new styles: what is seen no longer hangs on one palette."""
    _prepare(out)
    _report(pretrain(base, out, _override(replace(BROADEN, seed=seed), overrides or []), _log))


@app.command("narrow")
def narrow_command(base: Base, out: Out, seed: Seed = 0, overrides: Overrides = None) -> None:
    """Fine-tune on imperfect demonstrations: the capability stays, the policy gets poor."""
    _prepare(out)
    _report(narrow(base, out, _override(NarrowConfig(seed=seed), overrides or []), _log))


def _override(config: _Config, overrides: list[str]) -> _Config:
    """Settings with key=value over them. Raises UserError for an unknown key or a value of another type."""
    known = {field.name for field in fields(config)} - {"seed"}
    for item in overrides:
        key, _, text = item.partition("=")
        if key not in known:
            raise UserError(f"tandem tiny: unknown setting {key!r}; known: {', '.join(sorted(known))}")
        kind = type(getattr(config, key))
        try:
            value = json.loads(text)
        except ValueError:
            value = text
        value = tuple(value) if kind is tuple and isinstance(value, list) else value
        value = float(value) if kind is float and type(value) is int else value
        if type(value) is not kind:
            raise UserError(f"tandem tiny: {key}={text} is no {kind.__name__}")
        config = replace(config, **{key: value})
    return config


def _prepare(out: Path) -> None:
    torch.set_num_threads(1)  # more threads are slower for so small a model
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write {out}: {error.strerror or error}") from error
    if not os.access(out, os.W_OK):
        raise UserError(f"cannot write {out}: permission denied")


def _log(record: dict[str, Any]) -> None:
    typer.echo(json.dumps({k: round(v, 6) if isinstance(v, float) else v for k, v in record.items()}))


def _report(figures: dict[str, Any]) -> None:
    typer.echo(json.dumps(figures))
