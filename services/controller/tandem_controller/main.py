"""One run from config to report: preflight, services, evaluation before, training, evaluation after."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console

from tandem.cluster import Deployment, deployed
from tandem.config import Config
from tandem.obs import trace
from tandem.obs.metrics import setup_metrics
from tandem.runtime import until_signal
from tandem.types import UserError
from tandem_controller import preflight, report
from tandem_controller.evaluate import evaluate
from tandem_controller.hosts import Hosts
from tandem_controller.loop import Stopwatch, start, train
from tandem_controller.machine import NOTHING, Given
from tandem_controller.measured import record_evaluation
from tandem_controller.mirrored import mirror_caught_up
from tandem_controller.outcomes import Evaluation, as_json
from tandem_controller.pace import Pace
from tandem_controller.past import Past, compare, read_past, with_steps
from tandem_controller.pipeline import learned, open_journal
from tandem_controller.progress import Progress
from tandem_controller.recording import recording
from tandem_controller.recoveries import Recoveries
from tandem_controller.replicas import Replicas
from tandem_controller.reported import reported
from tandem_controller.run_controls import controlled
from tandem_controller.run_dir import RunDir, find_run_dir, open_run_dir, resolved, unused_store, write_json
from tandem_controller.services import History, Services, adapter_of
from tandem_controller.sessions import FINISHED, STOPPED
from tandem_controller.suites import DEFAULT, Suite, training_plan
from tandem_controller.supervisor import Supervisor
from tandem_controller.tables import print_evaluation
from tandem_controller.tracking import check_trackers, tracked

T = TypeVar("T")


def run_training(config: Config, resume: bool, force: bool, console: Console, asked: Given = NOTHING) -> bool:
    """Train as the config says and was `asked`; whether there is now an adapter, and tasks, for a plain `tandem eval`.

    Raises:
        UserError: the config, the machine or the store cannot do it; the run directory is untouched then.
    """
    began = time.monotonic()
    if config.learner.trainable == "full" or config.learner.algo.supervised:
        raise UserError("learner.trainable full and learner.algo.loss sft are `tandem sft`'s: engines serve adapters")
    config = resolved(config)
    check_trackers(config)
    console.print(preflight.words(config, preflight.check(config)), highlight=False)
    wanted = training_plan(config)
    for line in wanted.remarks:
        console.print(f"evaluation: {line}", highlight=False, soft_wrap=True)
    path, past = found(config, resume, force, console)
    past = with_steps(past, config, path, open_journal(config, path), RunDir(path).rows())
    rewind_to = past.reached if resume else None
    with starting(began) as started, deployed(config, config.run.name, rewind_to=rewind_to) as deployment:
        console.print(f"services up after {time.monotonic() - began:.0f} s; run directory {path}", highlight=False)
        return asyncio.run(_session(config, past, wanted.suites, console, path, deployment, asked, started))


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
    deployment: Deployment,
    asked: Given,
    started: Callable[[], float],
) -> bool:
    history = partial(learned, open_journal(config, path))
    async with (
        stop_on_signal(console) as stop,
        connected(deployment, config, history, console, stop) as supervisor,
        AsyncExitStack() as ends,
    ):
        services = supervisor.services
        await services.fleet.check(services.base_model)
        position = await start(services, config, past, history)
        seconds, watch = {"start": started()}, Stopwatch()
        run = open_run_dir(path, config, past)

        async def evaluated(when: str, version: int) -> Evaluation | None:
            with timed(seconds, f"evaluation {when}"), watch.phase(f"evaluation {when}"):
                adapter = await services.keeper.keep(partial(adapter_of, services, version))
                save = partial(recorder.evaluation, version)
                found = await unless(stop, evaluate(services.fleet, config, adapter, suites, save))
            record_evaluation(found, seconds[f"evaluation {when}"])
            return found

        pace = Pace(config.rollout.groups_per_step, run.rows())
        told = ends.enter_context(reported(config, asked, run, supervisor, pace, seconds))
        tracking = await ends.enter_async_context(tracked(config, run, position.version, told))
        async with (
            controlled(supervisor, run, watch, pace, console),
            recording(run.path, config, position.version) as recorder,
        ):
            before = report.read_before(run, console) if position.version else None
            if suites and not position.version and (before := await evaluated("before", 0)):
                tracking.evaluation(before)
                write_json(run.path / report.BEFORE, as_json(before))
                print_evaluation(console, "before training", before)
            watch.lap()  # what came before is no step's
            progress = Progress(console, config.run.steps, position.version, pace, tracking.step)
            with timed(seconds, "training"), progress:
                position = await train(services, config, run, past, position, progress, recorder, watch, stop)
            after = await evaluated("after", position.version)
        if after is None:
            told.how = STOPPED
            console.print(f"stopped and saved at version {position.version}; continue with --resume", highlight=False)
            return False
        tracking.evaluation(after)
        write_json(run.path / "eval-after.json", as_json(after))
        print_evaluation(console, f"after {position.version} steps", after)
        report.write(run, config, before, after, seconds)
        report.animate(run, console)
        report.print_phases(console, run, seconds)
        told.how = FINISHED
    return any(suite.name in DEFAULT for suite in suites)


@contextmanager
def starting(began: float) -> Iterator[Callable[[], float]]:
    """The trace of a start, from its services on. What is yielded ends it; seconds since `began` (monotonic)."""
    with ExitStack() as stack:

        def started() -> float:
            stack.close()
            return time.monotonic() - began

        stack.enter_context(trace("start"))
        yield started


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
    deployment: Deployment, config: Config, history: History, console: Console, stop: asyncio.Event
) -> AsyncIterator[Supervisor]:
    """The services of a training deployment, kept alive; at the end the mirror is waited for, unless `stop` is set."""
    setup_metrics(config, deployment.controller, deployment.host, deployment.node)
    hosts, recoveries = (
        Hosts(deployment, config, deployment.keyring.door(deployment.controller)),
        Recoveries(),
    )
    replicas = Replicas(hosts, recoveries)
    learner, checkpoints = hosts.learner(deployment.learner), hosts.checkpoints(deployment.checkpoint)
    status = await learner.status()
    services = Services(
        replicas.fleet,
        learner,
        checkpoints,
        status.adapter_config_json,
        status.base_model,
        direct=config.sync.transport == "grpc",
    )
    supervisor = services.keeper = Supervisor(hosts, services, replicas, recoveries, history)
    async with hosts.deaths(supervisor.died):
        try:
            await replicas.open()
            yield supervisor
            await mirror_caught_up(services.checkpoints, console, stop)
        finally:
            await supervisor.close()
            await replicas.close()
            await services.learner.close()
            await services.checkpoints.close()
