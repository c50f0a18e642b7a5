"""One run from config to report: preflight, services, evaluation before, training, evaluation after."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console

from tandem.cluster import Members, deployed
from tandem.config import Config
from tandem.rpc.clients import CheckpointClient, LearnerClient, RolloutClient
from tandem.runtime import until_signal
from tandem.types import Identity, Role, UserError
from tandem_controller import preflight, report
from tandem_controller.evaluate import evaluate
from tandem_controller.fleet import Fleet
from tandem_controller.loop import Services, adapter_of, start, train
from tandem_controller.mirrored import mirror_caught_up
from tandem_controller.outcomes import as_json
from tandem_controller.past import Past, compare, read_past
from tandem_controller.progress import Progress
from tandem_controller.run_dir import find_run_dir, open_run_dir, resolved, unused_store, write_json
from tandem_controller.suites import DEFAULT, Suite, training_plan
from tandem_controller.tables import print_evaluation

T = TypeVar("T")


def run_training(config: Config, resume: bool, force: bool, console: Console) -> bool:
    """Train as the config says; whether there is now an adapter, and tasks, for a plain `tandem eval`.

    Raises:
        UserError: the config, the machine or the store cannot do it; the run directory is untouched then.
    """
    began = time.monotonic()
    if config.learner.trainable == "full" or config.learner.algo.supervised:
        raise UserError("learner.trainable full and learner.algo.loss sft are `tandem sft`'s: engines serve adapters")
    config = resolved(config)
    console.print(preflight.words(config, preflight.check(config)), highlight=False)
    wanted = training_plan(config)
    for line in wanted.remarks:
        console.print(f"evaluation: {line}", highlight=False, soft_wrap=True)
    path, past = found(config, resume, force, console)
    with deployed(config, config.run.name, rewind_to=past.version if resume else None) as deployment:
        console.print(f"services up after {time.monotonic() - began:.0f} s; run directory {path}", highlight=False)
        return asyncio.run(_session(config, past, wanted.suites, console, path, deployment, began))


def found(config: Config, resume: bool, force: bool, console: Console) -> tuple[Path, Past]:
    """The run's folder and what it left there and in the store; says what has changed since. Touches nothing.

    Raises:
        UserError: there is a run where none should be, or none to resume, or it was another (without `force`).
    """
    if force and not resume:
        raise UserError("--force goes with --resume")
    path = find_run_dir(config, resume)
    if not resume:
        unused_store(config)
        return path, Past()
    past = read_past(config, path)
    for line in compare(past, config, force):
        console.print(f"changed since it was saved: {line}", highlight=False, soft_wrap=True, markup=False)
    return path, past


async def _session(
    config: Config,
    past: Past,
    suites: Sequence[Suite],
    console: Console,
    path: Path,
    deployment: Members,
    began: float,
) -> bool:
    async with stop_on_signal(console) as stop, connected(deployment, config, console, stop) as services:
        await services.fleet.check(services.base_model)
        version = past.version
        position = await start(services, config, version)
        run = open_run_dir(path, config, past)
        seconds = {"start": time.monotonic() - began}
        before = report.read_before(run, console) if version else None
        with timed(seconds, "evaluation before"):
            if not version and suites:
                base = await adapter_of(services, 0)
                before = await unless(
                    stop, evaluate(services.fleet, config, base, suites, report.recorder(run, "before"))
                )
        if before and not version:
            write_json(run.path / report.BEFORE, as_json(before))
            print_evaluation(console, "before training", before)
        progress = Progress(console, config.run.steps, position.version, config.rollout.groups_per_step)
        with timed(seconds, "training"), progress:
            position = await train(services, config, run, position, progress, stop)
        with timed(seconds, "evaluation after"):
            trained = await adapter_of(services, position.version)
            after = await unless(stop, evaluate(services.fleet, config, trained, suites, report.recorder(run, "after")))
        if after is None:
            console.print(f"stopped and saved at version {position.version}; continue with --resume", highlight=False)
            return False
        write_json(run.path / "eval-after.json", as_json(after))
        print_evaluation(console, f"after {position.version} steps", after)
        report.write(run, config, before, after, seconds)
        report.animate(run, console)
        report.print_phases(console, run, seconds)
    return any(suite.name in DEFAULT for suite in suites)


@contextmanager
def timed(seconds: dict[str, float], phase: str) -> Iterator[None]:
    """Note how long the body took."""
    began = time.monotonic()
    try:
        yield
    finally:
        seconds[phase] = time.monotonic() - began


@asynccontextmanager
async def stop_on_signal(console: Console) -> AsyncIterator[asyncio.Event]:
    """An event that the first SIGINT or SIGTERM sets; a second one has its default effect."""
    stop = asyncio.Event()

    async def watch() -> None:
        await until_signal()
        console.print("stopping after this step; once more to end at once", highlight=False)
        stop.set()

    watcher = asyncio.create_task(watch())
    try:
        yield stop
    finally:
        watcher.cancel()


async def unless(stop: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
    """The work's result; None, with the work cancelled, once `stop` is set."""
    task, stopped = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        task.cancel()
        stopped.cancel()


@asynccontextmanager
async def connected(
    deployment: Members, config: Config, console: Console, stop: asyncio.Event
) -> AsyncIterator[Services]:
    """Clients of a training deployment; at the end the mirror is waited for, unless `stop` is set."""
    door = deployment.keyring.door(Identity(Role.CONTROLLER, 0, 1))
    fleet = Fleet(
        config.rollout,
        config.model.probe_tolerance,
        lambda member: RolloutClient(member.address, door),
        deterministic=config.run.deterministic,
    )
    learner = LearnerClient(deployment.learner.address, door)
    checkpoints = CheckpointClient(deployment.checkpoint.address, door)
    try:
        for member in deployment.rollouts:
            await fleet.admit(member)
        status = await learner.status()
        yield Services(
            fleet,
            learner,
            checkpoints,
            deployment.checkpoint.address,
            status.adapter_config_json,
            status.base_model,
            direct=config.sync.transport == "grpc",
        )
        await mirror_caught_up(checkpoints, console, stop)
    finally:
        await fleet.close()
        await learner.close()
        await checkpoints.close()
