"""Supervised fine-tuning: the training loop with demonstrations for rollouts.

    demonstrations -> groups -> learner.train_step (loss sft) -> version + 1 -> published every `checkpoint.state_every`

Model code, services and checkpoints are those of `tandem train`. What comes out is an adapter, or with
`learner.trainable: full` a model folder.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from rich.console import Console

from tandem.cluster import Deployment, deployed
from tandem.config import Config
from tandem.obs import span
from tandem.types import AdapterRef, PublishKind, TandemError, TrajectoryGroup
from tandem_controller import preflight
from tandem_controller.demonstrations import Demonstrations, open_demonstrations
from tandem_controller.journal import Position
from tandem_controller.loop import Stopwatch, described, go_on, learn, save, save_what_can_be
from tandem_controller.machine import NOTHING, Given
from tandem_controller.main import connected, found, starting, stop_on_signal, timed
from tandem_controller.measured import Steps
from tandem_controller.pace import Pace
from tandem_controller.past import Past
from tandem_controller.progress import Progress
from tandem_controller.reported import reported
from tandem_controller.run_controls import controlled
from tandem_controller.run_dir import RunDir, open_run_dir, resolved, write_json
from tandem_controller.saver import Saver
from tandem_controller.services import Services, publish
from tandem_controller.sessions import FINISHED, STOPPED
from tandem_controller.step_trace import step_trace
from tandem_controller.suites import default_names
from tandem_controller.tracking import check_trackers, tracked


def run_sft(config: Config, resume: bool, force: bool, console: Console, asked: Given = NOTHING) -> bool:
    """Fine-tune as the config says and was `asked`; whether there is now an adapter, and tasks, for `tandem eval`.

    Raises:
        UserError: config, machine, store or demonstrations cannot do it; the run directory is untouched then.
    """
    began = time.monotonic()
    config = resolved(config)
    check_trackers(config)
    if not config.sft.episodes:
        preflight.check(config)
    demonstrations = open_demonstrations(config)
    path, past = found(config, resume, force, console)
    rewind_to, name = past.version if resume else None, config.run.name
    with starting(began) as started, deployed(config, name, rollouts=False, rewind_to=rewind_to) as deployment:
        console.print(f"services up after {time.monotonic() - began:.0f} s; run directory {path}", highlight=False)
        return asyncio.run(_session(config, past, console, path, deployment, demonstrations, asked, started))


async def _session(
    config: Config,
    past: Past,
    console: Console,
    path: Path,
    deployment: Deployment,
    demonstrations: Demonstrations,
    asked: Given,
    started: Callable[[], float],
) -> bool:
    seconds: dict[str, float] = {}
    history = partial(imitated, demonstrations)
    async with (
        stop_on_signal(console) as stop,
        connected(deployment, config, history, console, stop) as supervisor,
        AsyncExitStack() as ends,
    ):
        services = supervisor.services
        with span("restore"):
            position = await go_on(services, config, past, history)
        started()
        run = open_run_dir(path, config, past)
        pace, watch = Pace(rows=run.rows()), Stopwatch()
        told = ends.enter_context(reported(config, asked, run, supervisor, pace, seconds))
        tracking = await ends.enter_async_context(tracked(config, run, position.version, told))
        progress = Progress(console, config.run.steps, position.version, pace, tracking.step)
        async with controlled(supervisor, run, watch, pace, console):
            with timed(seconds, "training"), progress:
                position = await tune(services, config, run, position, demonstrations, progress, watch, stop)
        if position.version < config.run.steps:
            told.how = STOPPED
            console.print(f"stopped and saved at version {position.version}; continue with --resume", highlight=False)
            return False
        ref, _ = await services.checkpoints.get(services.weights, position.version)
        report(console, config, run, services.weights, ref, seconds)
        told.how = FINISHED
        return services.weights is PublishKind.ADAPTER and bool(default_names(config))


async def tune(
    services: Services,
    config: Config,
    run: RunDir,
    position: Position,
    demonstrations: Demonstrations,
    progress: Progress,
    watch: Stopwatch,
    stop: asyncio.Event,
) -> Position:
    """Make policy versions until `run.steps` or `stop`; what the last one needs is saved in any case."""
    saver, steps = Saver(services, config.checkpoint, position.version), Steps()
    try:
        while position.version < config.run.steps and not stop.is_set():
            with step_trace(run, position.version) as told:
                with watch.phase("data"):
                    groups, cursor = await taken(demonstrations, position.next_seed)
                with watch.phase("train"):
                    result = await learn(services, position.version, groups)
                position = Position(result.policy_version, cursor)
                row = {"version": position.version, "time": time.time(), **result.metrics, **figures(groups)}
                row |= watch.lap()
                whole = row | saver.figures()
                run.log(whole)  # first: its state goes with it
                steps.record(whole)
                told(whole)
                progress.step(row)
                saver.check()
                begin = partial(saver.begin, position.version, partial(described, run, position), services.weights)
                if position.version % config.checkpoint.state_every == 0 or saver.lost:
                    await begin()
                await services.keeper.boundary(partial(saver.through, position.version, begin))
        await saver.settle()
    except TandemError:
        await save_what_can_be(services, run, position, saver)
        raise
    if saver.saved != position.version:
        await publish(services, services.weights, position.version)
        await save(services, run, position)
    return position


async def imitated(
    demonstrations: Demonstrations, since: Position, until: int
) -> AsyncIterator[tuple[int, list[TrajectoryGroup]]]:
    """What versions `since` .. `until` - 1 learned from."""
    cursor = since.next_seed
    for version in range(since.version, until):
        groups, cursor = await taken(demonstrations, cursor)
        yield version, groups


async def taken(demonstrations: Demonstrations, cursor: int) -> tuple[list[TrajectoryGroup], int]:
    """The batch at a cursor, made in a thread.

    Raises:
        TandemError: also for what an environment raises, which is not ours.
    """
    future = asyncio.get_running_loop().run_in_executor(None, demonstrations.take, cursor)
    await asyncio.wait({future})
    problem = future.exception()
    if problem is not None and not isinstance(problem, TandemError):
        raise TandemError(f"demonstrations: {type(problem).__name__}: {problem}") from problem
    return future.result()


def figures(groups: list[TrajectoryGroup]) -> dict[str, float]:
    """Figures of a step's demonstrations for metrics.jsonl."""
    episodes = [trajectory for group in groups for trajectory in group.trajectories]
    return {
        "data/episodes": len(episodes),
        "data/turns": sum(len(trajectory.turns) for trajectory in episodes),
        "data/solve_rate": sum(trajectory.solved for trajectory in episodes) / len(episodes),
    }


def report(
    console: Console, config: Config, run: RunDir, kind: PublishKind, ref: AdapterRef, seconds: dict[str, float]
) -> None:
    """report.json, and in words what was made and where to put it."""
    rows = run.rows()
    losses = [row["loss"] for row in rows]
    content = {
        "run": config.run.name,
        "seed": config.run.seed,
        "steps": len(rows),
        "loss": {"first": losses[0], "last": losses[-1]},
        "data_solve_rate": sum(row["data/solve_rate"] for row in rows) / len(rows),
        "published": {"kind": str(kind), "url": ref.url, "sha256": ref.sha256},
        "seconds": seconds,
    }
    write_json(run.path / "report.json", content)
    use = "its folder can be a recipe's model.path"
    if kind is PublishKind.ADAPTER:
        use = "its folder can be `tandem eval --adapter`, or a recipe's model.adapter"
    console.print(
        f"loss {losses[0]:.4f} -> {losses[-1]:.4f} in {len(rows)} steps, {seconds['training']:.1f} s; "
        f"demonstrations solved {content['data_solve_rate']:.1%} of their tasks",
        highlight=False,
        soft_wrap=True,
    )
    console.print(f"{kind} published at {ref.url}; {use}", highlight=False, soft_wrap=True)
