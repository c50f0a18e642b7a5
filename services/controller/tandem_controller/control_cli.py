"""`tandem status`, `tandem scale` and `tandem drain`: a look at a run that is running, and changes to it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tandem.config import SecurityConfig, load_recipe
from tandem.rpc.controller_client import ControllerClient
from tandem.rpc.keyring import operator_door
from tandem.types import RunStatus, Unavailable, UserError
from tandem_controller.control import Control, read_control
from tandem_controller.past import CONFIG_FILE, FACTS_FILE
from tandem_controller.status_tables import print_status

RunDir = Annotated[Path, typer.Argument(metavar="RUN_DIR", help="The run's folder, such as runs/maze2d.")]
Numbers = Annotated[list[str], typer.Argument(metavar="NAME=N", help="rollout=N, learner=N, or both.")]
COUNTS = ("rollout", "learner")


def status(
    run_dir: RunDir, as_json: Annotated[bool, typer.Option("--json", help="JSON instead of tables.")] = False
) -> None:
    """How a run fares: what it does, who takes part and where, who waits for whom, what died and what became of it."""

    async def ask() -> RunStatus:
        async with connected(run_dir) as (_, found):
            return found

    found = asyncio.run(ask())
    if as_json:
        typer.echo(json.dumps(asdict(found)))
    else:
        print_status(Console(), found, time.time())


def scale(run_dir: RunDir, numbers: Numbers) -> None:
    """Change how many rollout replicas and learner ranks a run has, from its next step on."""
    wanted = _numbers(numbers)

    async def ask() -> None:
        async with connected(run_dir) as (client, _):
            await client.scale(rollout=wanted.get("rollout"), learner=wanted.get("learner"))

    asyncio.run(ask())
    typer.echo(f"from the next step on: {', '.join(f'{name}={count}' for name, count in wanted.items())}")


def drain(
    run_dir: RunDir,
    node: Annotated[str, typer.Argument(help="A node's name, as `tandem status` shows it.")],
    why: Annotated[str, typer.Option(help="A reason, for the log.")] = "asked for by hand",
) -> None:
    """Have a run leave a node: it saves, goes on elsewhere, and places nothing new there."""

    async def ask() -> str:
        async with connected(run_dir) as (client, found):
            meant = _node(node, found)
            await client.drain(meant, why)
            return meant

    typer.echo(f"{asyncio.run(ask())}: the run leaves it; `tandem status {run_dir}` shows how far that is")


@asynccontextmanager
async def connected(run_dir: Path) -> AsyncIterator[tuple[ControllerClient, RunStatus]]:
    """A client of the controller that runs this run now, and what it says of itself.

    Raises:
        UserError: there is no run, it is not running, or its controller does not answer.
        Forbidden: it does not take us for an operator.
    """
    control = running(run_dir)
    config = run_dir / CONFIG_FILE  # not there yet while a first start is under way
    security = load_recipe(config).security if config.exists() else SecurityConfig()
    client = ControllerClient(control.address, operator_door(security, run_dir))
    try:
        try:
            found = await client.status()
        except Unavailable as problem:
            raise UserError(_silent(run_dir, control)) from problem
        if (run_id := _run_id(run_dir)) and found.run_id and found.run_id != run_id:
            raise UserError(f"{run_dir} is not running: another run's controller has its old port; {_again(run_dir)}")
        yield client, found
    finally:
        await client.close()


def running(run_dir: Path) -> Control:
    """Where the run's controller listens. Raises UserError where there is no run, or it is known not to run."""
    if not run_dir.is_dir():
        raise UserError(f"{run_dir}: no such folder; name a run's, which is run.dir/run.name of its recipe")
    control = read_control(run_dir)
    if control is None:
        if not (run_dir / CONFIG_FILE).exists():
            raise UserError(f"{run_dir} holds no run; name a run's folder, which is run.dir/run.name of its recipe")
        raise UserError(f"{run_dir} is not running; {_again(run_dir)}")
    if control.dead:
        raise UserError(
            f"{run_dir} is not running: its controller, process {control.pid}, ended without a word; {_again(run_dir)}"
        )
    return control


def _silent(run_dir: Path, control: Control) -> str:
    return (
        f"{run_dir}: its controller, process {control.pid} of {control.machine} at {control.address}, does not answer; "
        "look whether it lives and can be reached from here; if it is gone, " + _again(run_dir)
    )


def _again(run_dir: Path) -> str:
    return "continue it with tandem train RECIPE --resume"


def _run_id(run_dir: Path) -> str:
    try:
        return str(json.loads((run_dir / FACTS_FILE).read_text())["run_id"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _node(given: str, status: RunStatus) -> str:
    """The node of the run that is meant: by its name, or by the beginning of one alone."""
    nodes = sorted({item.member.node for item in status.members if item.member.node})
    meant = [node for node in nodes if node == given] or [node for node in nodes if given and node.startswith(given)]
    if len(meant) != 1:
        what = "several nodes" if meant else "no node"
        raise UserError(f"drain: '{given}' is {what} of this run; there are: {', '.join(nodes)}")
    return meant[0]


def _numbers(given: list[str]) -> dict[str, int]:
    wanted: dict[str, int] = {}
    for item in given:
        name, equals, text = item.partition("=")
        if name not in COUNTS or not equals:
            raise UserError(f"scale: '{item}'; write rollout=N, learner=N, or both")
        if name in wanted:
            raise UserError(f"scale: {name} is given twice")
        if not (text.isascii() and text.isdigit()) or int(text) < 1:
            raise UserError(f"scale: {item}: not a number from 1 on")
        wanted[name] = int(text)
    return wanted
