"""`tandem train`, `tandem sft` and `tandem eval`. Heavy imports come after the recipe has been read."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tandem.config import Config, dump_yaml, load_recipe
from tandem.obs import setup
from tandem.types import Identity, Role

Recipe = Annotated[Path, typer.Argument(help="YAML recipe, such as deploy/recipes/maze2d-cpu.yaml.")]
Overrides = Annotated[list[str] | None, typer.Argument(help="key.sub=value, over the recipe.")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue the run from its last saved state.")]
Force = Annotated[bool, typer.Option("--force", help="With --resume: also where the recipe makes it another run.")]
Restarts = Annotated[
    int, typer.Option(min=0, help="Where the controller dies, go on, so many times in a row without a step.")
]
PrintConfig = Annotated[bool, typer.Option("--print-config", help="Print the resolved config and end.")]


def train(
    recipe: Recipe,
    overrides: Overrides = None,
    resume: Resume = False,
    force: Force = False,
    restarts: Restarts = 0,
    print_config: PrintConfig = False,
) -> None:
    """Train: start the services, evaluate, run GRPO, evaluate again, report."""
    config = _config(recipe, overrides or [], print_config)
    if restarts:
        from tandem_controller.restarting import run_restarting  # noqa: PLC0415 - see above

        arguments = [str(recipe), *_arguments(overrides, resume, force)]
        raise typer.Exit(
            run_restarting("train", arguments, Path(config.run.dir) / config.run.name, restarts, Console())
        )
    from tandem_controller.machine import given  # noqa: PLC0415 - see above
    from tandem_controller.main import run_training  # noqa: PLC0415 - see above

    console = Console()
    asked = given("train", recipe, _arguments(overrides, resume, force), config)
    if run_training(config, resume, force, console, asked):
        _print_next(console, recipe, overrides)


def evaluate(
    recipe: Recipe,
    overrides: Overrides = None,
    suite: Annotated[
        list[str] | None,
        typer.Option(help="fixed64, heldout, styles, larger, train or all; may be repeated. Default: the first two."),
    ] = None,
    limit: Annotated[
        int, typer.Option(min=0, help="At most so many tasks of each environment; 0: as the recipe says.")
    ] = 0,
    samples: Annotated[int, typer.Option(min=1, help="Episodes of each task; above 1, pass@k is reported.")] = 1,
    temperature: Annotated[
        float | None, typer.Option(min=0, help="0 is greedy. Default: 0 for one sample, 1 for several.")
    ] = None,
    adapter: Annotated[
        str, typer.Option(help="A version of the recipe's store, 'latest', a published folder's URL, or 'none'.")
    ] = "none",
    against: Annotated[
        str, typer.Option(help="Another such, to play the same tasks and be compared task by task.")
    ] = "",
    json_file: Annotated[Path | None, typer.Option("--json", help="Write figures and outcomes there.")] = None,
    save: Annotated[Path | None, typer.Option(help="Record all episodes in this folder.")] = None,
    print_config: PrintConfig = False,
) -> None:
    """Evaluate: solve rates on tasks never trained on, with 95% intervals, for one adapter or two compared."""
    config = _config(recipe, overrides or [], print_config)
    from tandem_controller.eval_main import Request, run_evaluation  # noqa: PLC0415 - see above

    request = Request(adapter, against, tuple(suite or ()), limit, samples, temperature, json_file, save)
    run_evaluation(config, request, Console())


def sft(
    recipe: Recipe,
    overrides: Overrides = None,
    resume: Resume = False,
    force: Force = False,
    print_config: PrintConfig = False,
) -> None:
    """Fine-tune on demonstrations: recorded episodes, or an environment's expert. Makes an adapter or a whole model."""
    config = _config(recipe, [*(overrides or []), "learner.algo.loss=sft"], print_config)
    from tandem_controller.machine import given  # noqa: PLC0415 - see above
    from tandem_controller.sft import run_sft  # noqa: PLC0415 - see above

    console = Console()
    asked = given("sft", recipe, _arguments(overrides, resume, force), config)
    if run_sft(config, resume, force, console, asked):
        _print_next(console, recipe, overrides)


def _arguments(overrides: list[str] | None, resume: bool, force: bool) -> list[str]:
    """What was given beside the recipe, but for how often to start again."""
    return [*(overrides or []), *(["--resume"] if resume else []), *(["--force"] if force else [])]


def _config(recipe: Path, overrides: list[str], print_only: bool) -> Config:
    """The recipe with its overrides; the command ends here where it is only to be printed."""
    config = load_recipe(recipe, overrides)
    if print_only:
        sys.stdout.write(dump_yaml(config))
        raise typer.Exit
    setup(config, Identity(Role.CONTROLLER))
    return config


def _print_next(console: Console, recipe: Path, overrides: list[str] | None) -> None:
    """What evaluates the adapter just made: the recipe and overrides as given, which name the run and its store."""
    line = shlex.join(["tandem", "eval", str(recipe), *(overrides or []), "--adapter", "latest"])
    console.print(f"evaluate it: {line}", highlight=False, soft_wrap=True, markup=False)


train.typer_settings = {"no_args_is_help": True}  # type: ignore[attr-defined]
sft.typer_settings = {"no_args_is_help": True}  # type: ignore[attr-defined]
evaluate.typer_settings = {"no_args_is_help": True}  # type: ignore[attr-defined]
