"""`tandem train` and `tandem eval`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tandem.config import dump_yaml, load_recipe

Recipe = Annotated[Path, typer.Argument(help="YAML recipe, such as deploy/recipes/maze2d-cpu.yaml.")]
Overrides = Annotated[list[str] | None, typer.Argument(help="key.sub=value, over the recipe.")]
PrintConfig = Annotated[bool, typer.Option("--print-config", help="Print the resolved config and end.")]


def train(
    recipe: Recipe,
    overrides: Overrides = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run from its last saved state.")] = False,
    print_config: PrintConfig = False,
) -> None:
    """Train: start the services, evaluate, run GRPO, evaluate again, report."""
    config = load_recipe(recipe, overrides or [])
    if print_config:
        sys.stdout.write(dump_yaml(config))
        return
    from tandem.obs import setup_logging  # noqa: PLC0415 - heavy imports only when they are needed
    from tandem_controller.main import run_training  # noqa: PLC0415

    setup_logging(config.obs, "controller")
    run_training(config, resume, Console(stderr=False))


def evaluate(
    recipe: Recipe,
    overrides: Overrides = None,
    adapter: Annotated[
        str, typer.Option(help="Folder URL of a published adapter, 'latest' of the recipe's store, or 'none'.")
    ] = "none",
    limit: Annotated[int, typer.Option(min=0, help="At most so many tasks of each suite; 0: as the recipe says.")] = 0,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures there.")] = None,
    print_config: PrintConfig = False,
) -> None:
    """Evaluate: solve rates on the fixed and the held-out tasks, greedy and sampled, with 95% intervals."""
    config = load_recipe(recipe, overrides or [])
    if print_config:
        sys.stdout.write(dump_yaml(config))
        return
    from tandem.obs import setup_logging  # noqa: PLC0415 - heavy imports only when they are needed
    from tandem_controller.eval_main import run_evaluation  # noqa: PLC0415

    setup_logging(config.obs, "controller")
    run_evaluation(config, adapter, limit, json_file, Console())


train.typer_settings = {"no_args_is_help": True}  # type: ignore[attr-defined]
evaluate.typer_settings = {"no_args_is_help": True}  # type: ignore[attr-defined]
