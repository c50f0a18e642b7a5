"""The services of a run, as the loop sees them, and what is made of several of their calls."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

from tandem.config import Config
from tandem.rpc.clients import CheckpointClient, LearnerClient
from tandem.runtime import reach
from tandem.storage import read_manifest
from tandem.types import AdapterRef, NotFound, PublishKind, Pushed, Role, TrajectoryGroup, UserError
from tandem_controller.fleet import Fleet
from tandem_controller.journal import Position

T = TypeVar("T")
SEEDS_PER_RUN_SEED = 10_000_000  # two run seeds never draw the same tasks
History = Callable[[Position, int], AsyncIterator[tuple[int, list[TrajectoryGroup]]]]


class Keeper(Protocol):
    """Keeps services alive for those who call them."""

    async def keep(self, work: Callable[[], Awaitable[T]], *, blames: Role | None = None) -> T:
        """Do it, and again where a service died under it and another is in its place. What it calls must be harmless
        twice. Where all services answer and it fails still, the one that it `blames` is replaced, if any.

        Raises:
            TandemError: what the work raises, where nothing could be mended.
        """
        ...

    async def boundary(self, save: Callable[[], Awaitable[None]]) -> None:
        """Between two steps: what must not happen within one happens now. `save` saves the training state."""
        ...


class Unkept:
    """Whoever dies ends the run."""

    async def keep(self, work: Callable[[], Awaitable[T]], *, blames: Role | None = None) -> T:
        return await work()

    async def boundary(self, save: Callable[[], Awaitable[None]]) -> None:
        """Nothing is asked of it."""


@dataclass(slots=True)
class Services:
    """What the loop talks to. The keeper puts another client in the place of one whose service died: take the client
    from here for each call. `version` is what the learner is at, or is to be brought back to."""

    fleet: Fleet
    learner: LearnerClient
    checkpoints: CheckpointClient
    adapter_config_json: str
    base_model: str
    direct: bool = False  # adapters go from the learner's ranks to the replicas; else from the store
    keeper: Keeper = field(default_factory=Unkept)
    version: int = 0

    @property
    def weights(self) -> PublishKind:
        """What the learner trains, and so what its shards join into."""
        return PublishKind.ADAPTER if self.adapter_config_json else PublishKind.MODEL

    async def score(self, kind: PublishKind, version: int, scores: Mapping[str, float]) -> None:
        """Add figures to a published version. Raises as the checkpoint manager."""
        await self.keeper.keep(lambda: self.checkpoints.score(kind, version, scores))


async def bring(services: Services, config: Config, history: History, version: int) -> Position:
    """Bring the learner to a version: restore the latest training state and have it learn again what came after.

    Nothing is played and nothing published anew: engines and store have what came of it the first time, which is equal,
    with `run.deterministic` to the last bit. Returns where the run was at the state.

    Raises:
        UserError: `model.adapter` is no adapter of this model and these settings.
        TandemError: what it learned from is not known any more.
    """
    states = await services.checkpoints.list(PublishKind.STATE)
    saved = max((state.version for state in states), default=0)
    since = await restore(services, config, saved)
    at = saved or (await services.learner.status()).policy_version
    async for step, groups in history(since, version):
        if step >= at:
            await services.learner.train_step(step, groups)
    return since


async def restore(services: Services, config: Config, version: int) -> Position:
    """Restore a saved version; 0 is the start: the base model, or `model.adapter`. Raises as `bring`."""
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
    recorded = config.learner.algo.supervised and config.sft.episodes  # counted from the first
    return Position(0, 0 if recorded else config.run.seed * SEEDS_PER_RUN_SEED)


async def adapter_of(services: Services, version: int) -> AdapterRef:
    """The published adapter of a version; 0 is the base model without one, where none was published as the start."""
    try:
        return (await services.checkpoints.get(PublishKind.ADAPTER, version))[0]
    except NotFound:
        if version:
            raise
        return AdapterRef(0, "", "", "the base model", services.base_model, 0)


async def publish(services: Services, kind: PublishKind, version: int, metadata_json: str = "{}") -> AdapterRef:
    """Have every rank export its shard, and the checkpoint manager join them."""
    attempts = 0

    async def once() -> AdapterRef:
        nonlocal attempts
        attempts += 1
        if attempts > 1 and (found := await published(services, kind, version)):
            return found  # a learner that was brought back there may differ in its last bits
        shards = await services.learner.export(version, kind, services.checkpoints.peer.address)
        reach(f"controller/{kind}/exported")
        return await join(services, kind, version, len(shards), metadata_json)

    return await services.keeper.keep(once)


async def published(services: Services, kind: PublishKind, version: int) -> AdapterRef | None:
    """What is published of a version, if anything is."""
    try:
        return (await services.checkpoints.get(kind, version))[0]
    except NotFound:
        return None


async def push(services: Services, version: int) -> None:
    """Have every rank send its shard to the checkpoint manager and to all replicas; while the one joins and publishes
    the adapter, the others join, load and probe it. Where a service dies meanwhile the replicas load what is published.
    Raises as `publish` and `Fleet.settle`."""
    fleet, kind = services.fleet, PublishKind.ADAPTER
    attempts = 0

    async def once() -> None:
        nonlocal attempts
        attempts += 1
        if attempts > 1:
            adapter = await publish(services, kind, version)
            await fleet.wake()
            await fleet.load(adapter)
            return
        addresses = [member.address for member in fleet.members]
        exported = await services.learner.push(version, kind, services.checkpoints.peer.address, addresses)
        reach(f"controller/{kind}/exported")
        ref = AdapterRef(version, "", "", f"{kind} v{version}", services.base_model, 0)
        pushed = Pushed(len(exported.shards), services.adapter_config_json)
        loading = asyncio.ensure_future(fleet.load_pushed(ref, pushed, exported.missed))
        try:
            adapter = await join(services, kind, version, len(exported.shards))
        finally:
            loaded = await loading  # a load that is begun is seen to its end, whatever became of the other
        await fleet.settle(adapter, loaded)

    await services.keeper.keep(once)


async def join(
    services: Services, kind: PublishKind, version: int, world_size: int, metadata_json: str = "{}"
) -> AdapterRef:
    """Have the checkpoint manager join the shards that were sent to it, and publish the result."""
    ref = await services.checkpoints.publish(
        kind,
        version,
        world_size=world_size,
        base_model=services.base_model,
        adapter_config_json=services.adapter_config_json if kind is PublishKind.ADAPTER else "",
        metadata_json=metadata_json,
    )
    reach(f"controller/{kind}/published")
    return ref
