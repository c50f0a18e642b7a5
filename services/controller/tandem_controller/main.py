"""One run from config to report: preflight, services, evaluation before, training, evaluation after."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rich.console import Console

from tandem.cluster import Deployment, deployed
from tandem.config import Config
from tandem.rpc.clients import CheckpointClient, LearnerClient
from tandem.runtime import until_signal
from tandem_controller import evaluate as ev
from tandem_controller import preflight, report
from tandem_controller.fleet import Fleet
from tandem_controller.loop import Services, start, train
from tandem_controller.progress import Progress
from tandem_controller.run_dir import RunDir, find_run_dir, open_run_dir, resolved, saved_version, write_json


def run_training(config: Config, resume: bool, console: Console) -> RunDir:
    """Train as the config says.

    Raises:
        UserError: the config, the machine or the store cannot do it; the run directory is untouched then.
    """
    began = time.monotonic()
    config = resolved(config)
    solvable = preflight.check(config)
    console.print(
        f"{config.env.id}: {solvable:.1%} of tasks can be solved within {config.env.max_turns} turns, by the oracle",
        highlight=False,
    )
    run = find_run_dir(config, resume)
    version = saved_version(config) if resume else 0
    with deployed(config, rewind_to=version if resume else None) as deployment:
        open_run_dir(run, config, version)
        console.print(f"services up after {time.monotonic() - began:.0f} s; run directory {run.path}", highlight=False)
        asyncio.run(_session(config, version, console, run, deployment, began))
    return run


async def _session(
    config: Config, version: int, console: Console, run: RunDir, deployment: Deployment, began: float
) -> None:
    stop = asyncio.Event()
    interrupt = asyncio.create_task(_stop_on_signal(stop, console))
    async with connected(deployment) as services:
        await services.fleet.check(services.base_model)
        seconds = {"start": time.monotonic() - began}
        suites = ev.suites(config)
        clock = time.monotonic()
        position = await start(services, config, version)
        before = {} if version else await ev.evaluate(services.fleet, config, version, suites)
        report.print_suites(console, "before training", before)
        if before:
            write_json(run.path / report.BEFORE, ev.as_json(before))
        seconds["evaluation before"] = time.monotonic() - clock
        clock = time.monotonic()
        with Progress(console, config.run.steps, position.version, config.rollout.groups_per_step) as progress:
            position = await train(services, config, run, position, progress, stop)
        seconds["training"] = time.monotonic() - clock
        if stop.is_set():
            console.print(f"stopped and saved at version {position.version}; continue with --resume", highlight=False)
            return
        clock = time.monotonic()
        after = await ev.evaluate(services.fleet, config, position.version, suites)
        write_json(run.path / "eval-after.json", ev.as_json(after))
        seconds["evaluation after"] = time.monotonic() - clock
        report.print_suites(console, f"after {position.version} steps", after)
        report.write(run, config, before, after, seconds)
        report.print_phases(console, run, seconds)
    interrupt.cancel()


async def _stop_on_signal(stop: asyncio.Event, console: Console) -> None:
    await until_signal()
    console.print("stopping after this step; once more to end at once", highlight=False)
    stop.set()


@asynccontextmanager
async def connected(deployment: Deployment) -> AsyncIterator[Services]:
    """Clients of a training deployment."""
    fleet, learner = Fleet(deployment.rollouts), LearnerClient(deployment.learner)
    checkpoints = CheckpointClient(deployment.checkpoint)
    try:
        status = await learner.status()
        yield Services(
            fleet, learner, checkpoints, deployment.checkpoint, status.adapter_config_json, status.base_model
        )
    finally:
        await fleet.close()
        await learner.close()
        await checkpoints.close()
