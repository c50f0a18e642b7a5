"""One replica: an engine, the player on it, and the policy version it serves."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncGenerator
from contextlib import AbstractContextManager, aclosing
from dataclasses import dataclass

from tandem.envs.registry import get_spec
from tandem.obs import get_logger, span
from tandem.obs.instruments import ADAPTER_LOAD, EPISODES_RUNNING, GROUP_TIME, POLICY_VERSION
from tandem.obs.metrics import observe, watch
from tandem.storage import check_place
from tandem.types import (
    AdapterLoaded,
    AdapterRef,
    Pushed,
    RolloutStatus,
    RolloutTask,
    ShardRef,
    StaleRequest,
    StopReason,
    TrajectoryGroup,
    Unavailable,
    UserError,
)
from tandem_rollout.adapters import NAME, AdapterRules, join_adapter, stage_adapter
from tandem_rollout.core import Player
from tandem_rollout.engine import Engine, LocalAdapter
from tandem_rollout.inbox import Inbox, Incoming
from tandem_rollout.own_folder import OwnFolder, parent_for

log = get_logger(__name__)
ADAPTERS_HELD = 3  # the one served, the next one, and its shards while they are joined


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a request may name: environments and places of adapters, as the recipe does."""

    env: str
    places: tuple[str, ...]

    def check_env(self, env: str) -> None:
        """Raises UserError unless it is the recipe's, or one that its evaluation plays: an id can import a module."""
        if env != self.env and env not in {other for ids in get_spec(self.env).variants.values() for other in ids}:
            raise UserError(f"environment {env[:200]!r} is neither the recipe's {self.env!r} nor a variant of it")


class Replica:
    """What the servicer calls. Starts at version 0, the base model."""

    def __init__(self, engine: Engine, player: Player, rules: AdapterRules, bounds: Bounds, folder: str = "") -> None:
        """`folder` is where adapters in use lie; empty chooses one: see `sync.folder` in the config.

        Raises:
            UserError: nothing can be written there.
        """
        self.engine = engine
        self.player = player
        self.rules, self.bounds = rules, bounds
        self.asleep = False
        self._lock = asyncio.Lock()  # one change of what the engine is or serves at a time
        most = rules.most_bytes
        self._folder = OwnFolder(parent_for(folder, ADAPTERS_HELD * most))
        self.inbox = Inbox(self._folder.path / "shards", most)
        self._adapter: LocalAdapter | None = None
        self._loaded: AdapterLoaded | None = None
        watch(POLICY_VERSION, lambda: engine.policy_version)
        watch(EPISODES_RUNNING, lambda: player.played.running)

    async def rollout(self, task: RolloutTask) -> AsyncGenerator[TrajectoryGroup]:
        """Play a task's groups.

        Raises:
            StaleRequest: the replica serves another version, or sleeps.
            Unavailable: the engine is dead.
            UserError: the task cannot be played here.
        """
        if not self.engine.healthy:
            raise Unavailable("the engine is dead or hangs; this replica must be replaced")
        if self.asleep:
            raise StaleRequest("the replica sleeps; wake it first")
        await asyncio.to_thread(self.bounds.check_env, task.env)  # it may import a lot
        served = self.engine.policy_version
        if task.policy_version > served or (task.policy_version < served and not task.may_advance):
            raise StaleRequest(f"version {task.policy_version} was asked for, it serves {served}")
        async with aclosing(self.player.play(task)) as groups:
            async for group in groups:
                # What its end cut off are no episodes: others can play the whole group. It may have hung since an
                # answer that came: then a deadline cut them off, and whether it lives must be asked.
                if not self.engine.healthy or (_cut_off(group) and not await self.engine.answers()):
                    raise Unavailable("the engine died while it played; this replica must be replaced")
                observe(GROUP_TIME, group.seconds)
                yield group

    def receive(self, ref: ShardRef) -> AbstractContextManager[Incoming]:
        """Receive a shard of an adapter that is to be loaded: write its chunks in the body. Raises as the inbox."""
        return self.inbox.receive(ref)

    async def load(self, ref: AdapterRef, pushed: Pushed | None = None) -> AdapterLoaded:
        """Serve an adapter: a published one, or with `pushed` the one whose shards were sent here. Version 0 without
        either is the base model. The same one again does nothing.

        Episodes that are running go on under the new version from their next turn; each turn names its own.

        Raises:
            StaleRequest: the replica sleeps.
            UserError, NotFound, DataCorrupt: as `stage_adapter`, `join_adapter` and `Engine.serve`; the old one is
            still served.
        """
        started = time.perf_counter()
        async with self._lock:
            if self.asleep:
                raise StaleRequest("the replica sleeps; wake it before it can load an adapter")
            if self._loaded and self._serves(self._loaded, ref, pushed):
                return self._loaded
            with span("stage adapter", {"rl.policy_version": ref.version, "tandem.pushed": pushed is not None}):
                new = await self._staged(ref, pushed)
            sha256 = new.sha256 if new else ref.sha256
            if self._loaded and (ref.version, sha256) == (self._loaded.policy_version, self._loaded.sha256):
                return self._loaded  # sent once more
            try:
                with span("load adapter", {"rl.policy_version": ref.version}) as at:
                    logprob = await self.engine.serve(new)
                    at.set({"rl.probe_logprob": logprob})
            except BaseException:
                if new is not None:
                    shutil.rmtree(new.folder, ignore_errors=True)
                raise
            self._adapter = new
            self.inbox.clear()
            self._loaded = AdapterLoaded(ref.version, sha256, logprob, time.perf_counter() - started)
            observe(ADAPTER_LOAD, self._loaded.seconds, source="pushed" if pushed else "store")
            log.info("serving version %d, probe %.4f, %.2f s", ref.version, logprob, self._loaded.seconds)
            await asyncio.to_thread(self._clear_but, new)
            return self._loaded

    def _serves(self, loaded: AdapterLoaded, ref: AdapterRef, pushed: Pushed | None) -> bool:
        """Whether a request is for what is served. Of what was sent here the hash is not known before it is joined:
        where no shard is here, the request is a retry."""
        if ref.version != loaded.policy_version:
            return False
        return not self.inbox.holds(ref.version) if pushed else ref.sha256 == loaded.sha256

    def _clear_but(self, served: LocalAdapter | None) -> None:
        """Remove what is no longer in the engine, or of a load that was cut off."""
        for path in self._folder.path.glob(f"{NAME}*"):
            if served is None or path != served.folder:
                shutil.rmtree(path, ignore_errors=True)

    async def _staged(self, ref: AdapterRef, pushed: Pushed | None) -> LocalAdapter | None:
        folder = self._folder.path
        if pushed:
            return await asyncio.to_thread(join_adapter, ref, pushed, self.inbox, self.rules, folder)
        if ref.version == 0 and not ref.url:
            return None
        await asyncio.to_thread(check_place, ref.url, self.bounds.places)
        return await asyncio.to_thread(stage_adapter, ref, self.rules, folder)

    async def sleep(self) -> bool:
        """Free device memory; False where there is no sleep mode. Raises StaleRequest while episodes run."""
        async with self._lock:
            if self.player.played.running:
                raise StaleRequest(f"{self.player.played.running} episodes are running; let them end before Sleep")
            freed = await self.engine.sleep() if not self.asleep else self.engine.has_sleep_mode
            self.asleep = True
            return freed

    async def wake(self) -> None:
        """Take device memory back."""
        async with self._lock:
            if self.asleep:
                await self.engine.wake()
            self.asleep = False

    def status(self) -> RolloutStatus:
        """What the replica is, serves and has done."""
        played = self.player.played
        return RolloutStatus(
            healthy=self.engine.healthy,
            asleep=self.asleep,
            policy_version=self.engine.policy_version,
            base_model=self.rules.base.fingerprint,
            max_lora_rank=self.rules.max_lora_rank,
            episodes_running=played.running,
            episodes_done=played.episodes,
            turns_done=played.turns,
            tokens_done=played.tokens,
        )

    async def close(self) -> None:
        """Stop the engine and remove what was copied."""
        await self.player.close()
        await self.engine.close()
        self._folder.close()


def _cut_off(group: TrajectoryGroup) -> bool:
    return any(member.stop_reason in (StopReason.ENGINE_ERROR, StopReason.DEADLINE) for member in group.trajectories)
