"""The training loop.

    seeds -> play_step -> groups -> learner.train_step -> version + 1
      ^                                                        |
      '---- fleet.load <- checkpoints.publish <- learner.export'

The engines sleep while the learner trains, for they share its GPUs; with `rollout.max_staleness` they play on.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial

from tandem.config import Config
from tandem.obs import get_logger, span
from tandem.obs.instruments import PUBLISH_TO_LOAD
from tandem.obs.metrics import timed
from tandem.rpc.channel import new_request_id
from tandem.runtime import reach
from tandem.types import PublishKind, Role, TandemError, TrainResult, TrajectoryGroup
from tandem_controller.evaluate import fixed_greedy
from tandem_controller.journal import Position
from tandem_controller.measured import Steps
from tandem_controller.past import Past
from tandem_controller.pipeline import Pipeline
from tandem_controller.progress import Progress
from tandem_controller.recording import Recorder
from tandem_controller.rollouts import play_step
from tandem_controller.run_dir import RunDir
from tandem_controller.saver import Saver
from tandem_controller.scores import tell_scores
from tandem_controller.services import History, Services, Unkept, adapter_of, bring, publish, published, push
from tandem_controller.step_trace import step_trace
from tandem_controller.suites import FIXED, plan

log = get_logger(__name__)
STEP_S = 3600.0  # of a train step as a whole; ranks that hang in it are found out long before


@dataclass(slots=True)
class Stopwatch:
    """Seconds by phase of one step, each a span too, and what phase it is in, since when (by `time.perf_counter`)."""

    seconds: dict[str, float] = field(default_factory=dict)
    doing: str = "start"
    since: float = field(default_factory=time.perf_counter)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the body's time to a phase."""
        self.doing, self.since = name, time.perf_counter()
        try:
            with span(name):
                yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - self.since

    def lap(self) -> dict[str, float]:
        """The figures of the step that ends; the next one starts from zero."""
        seconds, self.seconds = self.seconds, {}
        return {f"seconds/{name}": value for name, value in seconds.items()}


async def start(services: Services, config: Config, past: Past, history: History) -> Position:
    """Bring learner and engines to where the run was left: 0 is the start's version."""
    with span("restore"):
        position = await go_on(services, config, past, history)
    reach("controller/start/restored")
    with span("load"):
        await services.fleet.load(await services.keeper.keep(partial(adapter_of, services, position.version)))
    reach("controller/start/loaded")
    return position


async def go_on(services: Services, config: Config, past: Past, history: History) -> Position:
    """Bring the learner to where the run was left. An adapter that it starts from is published, as version 0."""
    services.version = past.reached
    since = await services.keeper.keep(partial(bring, services, config, history, past.reached))
    if config.model.adapter and not past.reached:
        await publish(services, PublishKind.ADAPTER, 0)
    return past.position or since


async def train(
    services: Services,
    config: Config,
    run: RunDir,
    past: Past,
    position: Position,
    progress: Progress,
    recorder: Recorder,
    watch: Stopwatch,
    stop: asyncio.Event,
) -> Position:
    """Make policy versions until `run.steps` or `stop`; the training state of the last one is saved in any case."""
    async with Pipeline(services.fleet, config, run, position, progress.group, saved=past.version) as pipeline:
        saver = Saver(services, config.checkpoint, past.version)
        return await _train(services, config, run, pipeline, saver, progress, recorder, watch, stop)


async def _train(
    services: Services,
    config: Config,
    run: RunDir,
    pipeline: Pipeline,
    saver: Saver,
    progress: Progress,
    recorder: Recorder,
    watch: Stopwatch,
    stop: asyncio.Event,
) -> Position:
    position = pipeline.position(services.version)
    every = config.eval.every if config.eval.fixed else 0
    fixed = next(iter(plan(config, [FIXED]).suites), None) if every else None
    steps = Steps()
    try:
        while position.version < config.run.steps and not stop.is_set():
            with step_trace(run, position.version) as told:
                row = await make_version(services, pipeline, position.version, recorder, watch)
                position = pipeline.position(row["version"])
                try:
                    await saver.make_way(position.version)
                    await distribute(services, position.version, watch)
                    if fixed and position.version % every == 0:
                        with watch.phase("eval"):
                            record = partial(recorder.evaluation, position.version)
                            solved = await fixed_greedy(services.fleet, config, position.version, fixed, record)
                            row["eval_solve_rate"] = solved
                        reach("controller/eval/done")
                finally:  # the learner has made this version, whatever became of it since
                    row |= watch.lap()
                    whole = row | saver.figures()
                    run.log(whole)
                steps.record(whole)
                told(whole)
                await tell_scores(services.score, row)
                progress.step(row)
                saver.check()
                begin = partial(
                    saver.begin,
                    position.version,
                    partial(described, run, position),
                    first=partial(pipeline.begin_save, position.version),
                    then=pipeline.saved,
                )
                if position.version % config.checkpoint.state_every == 0 or saver.lost:
                    await begin()
                await services.keeper.boundary(partial(saver.through, position.version, begin))
        await saver.settle()
    except TandemError:
        await save_what_can_be(services, run, position, saver)
        raise
    if saver.saved != position.version:
        await pipeline.begin_save(position.version)
        await save(services, run, position)
        await pipeline.saved()
    return position


async def make_version(
    services: Services, pipeline: Pipeline, version: int, recorder: Recorder, watch: Stopwatch
) -> dict:
    """Play groups and learn from them: the next policy version, which only the learner has yet; its figures."""
    reach("controller/generate/started")
    with watch.phase("generate"):
        played = await play_step(pipeline, version)
    reach("controller/generate/done")
    with watch.phase("train"):
        if not pipeline.ahead:
            await services.fleet.sleep()
        await pipeline.learning(version, played.learned)
        result = await learn(services, version, played.learned)
    recorder.step(version, played.groups, result.advantages)
    reach("controller/train/done")
    return {"version": result.policy_version, "time": time.time(), **result.metrics, **played.figures()}


async def learn(services: Services, version: int, groups: Sequence[TrajectoryGroup]) -> TrainResult:
    """Have the learner make the next version of the groups, once, whatever dies meanwhile."""
    request_id = new_request_id()

    def step() -> Awaitable[TrainResult]:
        return services.learner.train_step(version, groups, STEP_S, request_id)

    result = await services.keeper.keep(step, blames=Role.LEARNER)
    services.version = result.policy_version
    return result


async def distribute(services: Services, version: int, watch: Stopwatch) -> None:
    """Publish the learner's adapter and have every engine serve it."""
    with watch.phase("sync"), timed(PUBLISH_TO_LOAD):
        if services.direct:
            await push(services, version)
        else:
            adapter = await publish(services, PublishKind.ADAPTER, version)
            await services.fleet.wake()
            await services.fleet.load(adapter)
    reach("controller/load/done")


def described(run: RunDir, position: Position) -> str:
    """The metadata of a state: all else that --resume continues from."""
    where = {"next_seed": position.next_seed, "ahead": position.ahead}
    return json.dumps({**where, **run.metadata(position.version)})


async def save(services: Services, run: RunDir, position: Position) -> None:
    """Publish the learner's training state, and wait for it: what --resume continues from."""
    await publish(services, PublishKind.STATE, position.version, described(run, position))


async def save_what_can_be(services: Services, run: RunDir, position: Position, saver: Saver) -> None:
    """After a service failed: save what was made since the last save, if the others still can."""
    services.keeper = Unkept()  # what could be mended has been
    with suppress(TandemError):  # it is told
        await saver.settle()
    if saver.saved == position.version:
        return
    try:
        if not await published(services, services.weights, position.version):  # the failure may have come before it
            await publish(services, services.weights, position.version)
        await save(services, run, position)
    except TandemError as problem:
        log.warning("version %d could not be saved: %s", position.version, problem)
    else:
        log.info("saved version %d; --resume continues from there", position.version)
