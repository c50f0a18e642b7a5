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
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial

from tandem.config import Config
from tandem.obs import get_logger
from tandem.rpc.clients import CheckpointClient, LearnerClient
from tandem.runtime import reach
from tandem.storage import read_manifest
from tandem.types import AdapterRef, NotFound, PublishKind, Pushed, TandemError, UserError
from tandem_controller.evaluate import fixed_greedy
from tandem_controller.fleet import Fleet
from tandem_controller.pipeline import Pipeline, Position
from tandem_controller.progress import Progress
from tandem_controller.rollouts import play_step
from tandem_controller.run_dir import RunDir
from tandem_controller.saver import Saver
from tandem_controller.scores import tell_scores
from tandem_controller.suites import FIXED, plan

log = get_logger(__name__)
SEEDS_PER_RUN_SEED = 10_000_000  # two run seeds never draw the same tasks


@dataclass(frozen=True, slots=True)
class Services:
    """What the loop talks to."""

    fleet: Fleet
    learner: LearnerClient
    checkpoints: CheckpointClient
    checkpoint_address: str
    adapter_config_json: str
    base_model: str
    direct: bool = False  # adapters go from the learner's ranks to the replicas; else from the store

    @property
    def weights(self) -> PublishKind:
        """What the learner trains, and so what its shards join into."""
        return PublishKind.ADAPTER if self.adapter_config_json else PublishKind.MODEL


@dataclass(slots=True)
class Stopwatch:
    """Seconds by phase of one step."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the body's time to a phase."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


async def start(services: Services, config: Config, version: int) -> Position:
    """Bring learner and engines to one version: 0 is the start's, another that of a saved state."""
    position = await restore(services, config, version)
    reach("controller/start/restored")
    await services.fleet.load(await adapter_of(services, version))
    reach("controller/start/loaded")
    return position


async def restore(services: Services, config: Config, version: int) -> Position:
    """Bring the learner to a version. The start, 0, is the base model or `model.adapter`, published anew as 0.

    Raises:
        UserError: `model.adapter` is no adapter of this model and these settings.
    """
    if version:
        state, metadata = await services.checkpoints.get(PublishKind.STATE, version)
        weights, _ = await services.checkpoints.get(services.weights, version)
        await services.learner.restore(weights, state)
        saved = json.loads(metadata)
        return Position(version, saved["next_seed"], tuple(tuple(seeds) for seeds in saved.get("ahead", ())))
    if url := config.model.adapter:
        manifest = read_manifest(url)
        if (manifest.kind, services.weights) != (PublishKind.ADAPTER, PublishKind.ADAPTER):
            raise UserError(f"model.adapter {url}: holds a {manifest.kind}; only lora starts, and from an adapter")
        await services.learner.restore(replace(manifest.ref(url), version=0), None)
        await publish(services, PublishKind.ADAPTER, 0)
    return Position(0, config.run.seed * SEEDS_PER_RUN_SEED)


async def adapter_of(services: Services, version: int) -> AdapterRef:
    """The published adapter of a version; 0 is the base model without one, where none was published as the start."""
    try:
        return (await services.checkpoints.get(PublishKind.ADAPTER, version))[0]
    except NotFound:
        if version:
            raise
        return AdapterRef(0, "", "", "the base model", services.base_model, 0)


async def train(
    services: Services, config: Config, run: RunDir, position: Position, progress: Progress, stop: asyncio.Event
) -> Position:
    """Make policy versions until `run.steps` or `stop`; the training state of the last one is saved in any case."""
    async with Pipeline(services.fleet, config, run, position, progress.group) as pipeline:
        return await _train(services, config, run, pipeline, position, progress, stop)


async def _train(
    services: Services,
    config: Config,
    run: RunDir,
    pipeline: Pipeline,
    position: Position,
    progress: Progress,
    stop: asyncio.Event,
) -> Position:
    saver = Saver(services.learner, partial(publish, services), config.checkpoint, position.version)
    every = config.eval.every if config.eval.fixed else 0
    fixed = next(iter(plan(config, [FIXED]).suites), None) if every else None
    try:
        while position.version < config.run.steps and not stop.is_set():
            watch = Stopwatch()
            row = await make_version(services, pipeline, position.version, watch)
            position = pipeline.position(row["version"])
            try:
                await saver.make_way(position.version)
                await distribute(services, position.version, watch)
                if fixed and position.version % every == 0:
                    with watch.phase("eval"):
                        row["eval_solve_rate"] = await fixed_greedy(services.fleet, config, position.version, fixed)
                    reach("controller/eval/done")
            finally:  # the learner has made this version, whatever became of it since
                row |= {f"seconds/{name}": seconds for name, seconds in watch.seconds.items()}
                run.log(row | saver.figures())
            await tell_scores(services.checkpoints, row)
            progress.step(row)
            saver.check()
            if position.version % config.checkpoint.state_every == 0:
                await saver.settle()
                await pipeline.begin_save(position.version)
                await saver.begin(position.version, partial(described, run, position), then=pipeline.saved)
        await saver.settle()
    except TandemError:
        await save_what_can_be(services, run, position, saver)
        raise
    if saver.saved != position.version:
        await save(services, run, position)
    return position


async def make_version(services: Services, pipeline: Pipeline, version: int, watch: Stopwatch) -> dict:
    """Play groups and learn from them: the next policy version, which only the learner has yet; its figures."""
    reach("controller/generate/started")
    with watch.phase("generate"):
        played = await play_step(pipeline, version)
    reach("controller/generate/done")
    with watch.phase("train"):
        if not pipeline.ahead:
            await services.fleet.sleep()
        result = await services.learner.train_step(version, played.learned)
    reach("controller/train/done")
    return {"version": result.policy_version, "time": time.time(), **result.metrics, **played.figures()}


async def distribute(services: Services, version: int, watch: Stopwatch) -> None:
    """Publish the learner's adapter and have every engine serve it."""
    with watch.phase("sync"):
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
    with suppress(TandemError):  # it is told
        await saver.settle()
    if saver.saved == position.version:
        return
    try:
        await publish(services, services.weights, position.version)  # the failure may have come before it was
        await save(services, run, position)
    except TandemError as problem:
        log.warning("version %d could not be saved: %s", position.version, problem)
    else:
        log.info("saved version %d; --resume continues from there", position.version)


async def publish(services: Services, kind: PublishKind, version: int, metadata_json: str = "{}") -> AdapterRef:
    """Have every rank export its shard, and the checkpoint manager join them."""
    shards = await services.learner.export(version, kind, services.checkpoint_address)
    reach(f"controller/{kind}/exported")
    return await join(services, kind, version, len(shards), metadata_json)


async def push(services: Services, version: int) -> None:
    """Have every rank send its shard to the checkpoint manager and to all replicas; while the one joins and publishes
    the adapter, the others join, load and probe it. Raises as `publish` and `Fleet.settle`."""
    fleet, kind = services.fleet, PublishKind.ADAPTER
    addresses = [member.address for member in fleet.members]
    exported = await services.learner.push(version, kind, services.checkpoint_address, addresses)
    reach(f"controller/{kind}/exported")
    ref = AdapterRef(version, "", "", f"{kind} v{version}", services.base_model, 0)
    pushed = Pushed(len(exported.shards), services.adapter_config_json)
    loading = asyncio.ensure_future(fleet.load_pushed(ref, pushed, exported.missed))
    try:
        published = await join(services, kind, version, len(exported.shards))
    finally:
        loaded = await loading  # a load that is begun is seen to its end, whatever became of the other
    await fleet.settle(published, loaded)


async def join(
    services: Services, kind: PublishKind, version: int, world_size: int, metadata_json: str = "{}"
) -> AdapterRef:
    """Have the checkpoint manager join the shards that were sent to it, and publish the result."""
    published = await services.checkpoints.publish(
        kind,
        version,
        world_size=world_size,
        base_model=services.base_model,
        adapter_config_json=services.adapter_config_json if kind is PublishKind.ADAPTER else "",
        metadata_json=metadata_json,
    )
    reach(f"controller/{kind}/published")
    return published
