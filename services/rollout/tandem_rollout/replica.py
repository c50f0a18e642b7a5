"""One replica: an engine, the player on it, and the policy version it serves."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

from tandem.obs import get_logger
from tandem.types import (
    AdapterLoaded,
    AdapterRef,
    RolloutStatus,
    RolloutTask,
    StaleRequest,
    TrajectoryGroup,
    Unavailable,
)
from tandem_rollout.adapters import AdapterRules, stage_adapter
from tandem_rollout.core import Player
from tandem_rollout.engine import Engine, LocalAdapter

log = get_logger(__name__)


class Replica:
    """What the servicer calls. Starts at version 0, the base model."""

    def __init__(self, engine: Engine, player: Player, rules: AdapterRules) -> None:
        self.engine = engine
        self.player = player
        self.rules = rules
        self.asleep = False
        self._lock = asyncio.Lock()  # one change of what the engine is or serves at a time
        self._folder = Path(tempfile.mkdtemp(prefix="tandem-adapters-"))
        self._adapter: LocalAdapter | None = None
        self._loaded: AdapterLoaded | None = None

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
        served = self.engine.policy_version
        if task.policy_version > served or (task.policy_version < served and not task.may_advance):
            raise StaleRequest(f"version {task.policy_version} was asked for, it serves {served}")
        async with aclosing(self.player.play(task)) as groups:
            async for group in groups:
                yield group

    async def load(self, ref: AdapterRef) -> AdapterLoaded:
        """Serve a published adapter; version 0 without a URL is the base model. The same one again does
        nothing.

        Episodes that are running go on under the new version from their next turn; each turn names its own.

        Raises:
            StaleRequest: the replica sleeps.
            UserError, NotFound, DataCorrupt: as `stage_adapter` and `Engine.serve`; the old one is still
            served.
        """
        started = time.perf_counter()
        async with self._lock:
            if self.asleep:
                raise StaleRequest("the replica sleeps; wake it before it can load an adapter")
            if self._loaded and (ref.version, ref.sha256) == (
                self._loaded.policy_version,
                self._loaded.sha256,
            ):
                return self._loaded
            bare = ref.version == 0 and not ref.url
            new = None if bare else await asyncio.to_thread(stage_adapter, ref, self.rules, self._folder)
            try:
                logprob = await self.engine.serve(new)
            except BaseException:
                if new is not None:
                    shutil.rmtree(new.folder, ignore_errors=True)
                raise
            old, self._adapter = self._adapter, new
            if old is not None:  # no longer in the engine: its files may go
                shutil.rmtree(old.folder, ignore_errors=True)
            self._loaded = AdapterLoaded(ref.version, ref.sha256, logprob, time.perf_counter() - started)
            log.info("serving version %d, probe %.4f, %.2f s", ref.version, logprob, self._loaded.seconds)
            return self._loaded

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
        shutil.rmtree(self._folder, ignore_errors=True)
