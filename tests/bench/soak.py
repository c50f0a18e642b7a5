"""A long run in a short time: simulated engines that take no time, and everything else real.

Rollout replicas in processes of their own, a checkpoint manager, the controller's Fleet, Pipeline and journal. Every
step a version is sent to the manager, published, and loaded by all while they play on; processes are killed and
replaced.
Only the learner is left out: it learns nothing, so that a day of episodes takes minutes.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import json
import signal
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors.numpy import save

from tandem.config import Config
from tandem.rpc.clients import CheckpointClient
from tandem.storage import Placement, ShardMeta
from tandem.types import AdapterRef, Identity, Member, PublishKind, Role, ShardRef
from tandem_checkpoint_manager.main import start as start_manager
from tandem_controller.fleet import Fleet
from tandem_controller.pipeline import Pipeline, Position
from tandem_controller.run_dir import RunDir
from tandem_rollout.base_model import read_base_model
from tests.bench.rehearsal import ROOT, Footprint, Host, fleet_at, footprint, host

GROUPS, SIZE, REPLICAS, SEATS = 64, 8, 2, 128
LAYER = "base_model.model.model.language_model.layers.0.self_attn.q_proj"


@dataclass(frozen=True)
class Row:
    """How things stand after so many episodes."""

    episodes: int
    seconds: float
    controller: Footprint  # and the manager, which lives in the same process
    tasks: int
    hosts: tuple[Footprint, ...]
    files: int  # in the run's folder, store included

    def __str__(self) -> str:
        replicas = ", ".join(map(str, self.hosts))
        return (
            f"{self.episodes:7d} episodes {self.seconds:5.0f} s | controller and manager {self.controller} "
            f"{self.tasks:3d} tasks | replicas {replicas} | {self.files} files on disk"
        )


def soak_config(folder: Path, steps: int) -> Config:
    """Two swaps of three digits: as little as an episode can be."""
    return Config.model_validate(
        {
            "run": {"dir": str(folder), "name": "soak", "steps": steps},
            "model": {"path": str(ROOT / "models/tiny-sort")},
            "env": {"id": "sort:3", "max_turns": 3, "window": 1},
            "rollout": {
                "groups_per_step": GROUPS,
                "group_size": SIZE,
                "max_staleness": 1,
                "max_tokens": 12,
                "max_concurrent_episodes": SEATS,
                "engine": {"kind": "simulated", "max_num_seqs": 1024},
            },
            "checkpoint": {"url": str(folder / "store")},
        }
    )


class Soak:
    """See the module. `kills` is how many times a process of replicas is killed and replaced on the way."""

    def __init__(self, folder: Path, steps: int, hosts: int, kills: int) -> None:
        self.folder, self.steps, self.kills = folder, steps, kills
        self.config = soak_config(folder, steps)
        self.base = read_base_model(self.config.model.path)
        self.seeds: list[int] = []
        self.failed = 0
        self._hosts: list[tuple[Host, AsyncExitStack, tuple[Member, ...]] | None] = [None] * hosts
        self._generation = 0

    async def run(self, rows: int) -> list[Row]:
        """Play all steps; a row at the start and at equal distances up to the end."""
        manager = await start_manager(self.config)
        checkpoints = CheckpointClient(manager.address)
        self.folder.mkdir(exist_ok=True)
        (self.folder / "run").mkdir()
        found, began = list[Row](), time.monotonic()
        async with AsyncExitStack() as stack:
            fleet = await stack.enter_async_context(fleet_at(self.config, ()))
            stack.push_async_callback(self._end)
            for index in range(len(self._hosts)):
                await self._replace(fleet, index)
            await fleet.load(AdapterRef(0, "", "", "", self.base.fingerprint, 0))
            line = Pipeline(fleet, self.config, RunDir(self.folder / "run"), Position(0, 0))
            await stack.enter_async_context(line)
            for version in range(self.steps):
                if version * rows // self.steps > (version - 1) * rows // self.steps or version == 1:
                    found.append(self._row(time.monotonic() - began))
                await self._step(line, fleet, checkpoints, version)
            found.append(self._row(time.monotonic() - began))
        await checkpoints.close()
        await manager.stop()
        return found

    async def _step(self, line: Pipeline, fleet: Fleet, checkpoints: CheckpointClient, version: int) -> None:
        due = self.kills and version % max(1, self.steps // (self.kills + 1)) == self.steps // (self.kills + 1) - 1
        taking = asyncio.ensure_future(line.take(version))
        if due and self._generation < len(self._hosts) + self.kills:
            await self._replace(fleet, self._generation % len(self._hosts))  # while it plays
        for group in await taking:
            self.seeds.append(group.seed)
            self.failed += sum(trajectory.stop_reason.failed for trajectory in group.trajectories)
        ref, chunks = self._shard(version + 1)
        await checkpoints.put_shard(ref, chunks)
        published = await checkpoints.publish(
            PublishKind.ADAPTER,
            version + 1,
            world_size=1,
            base_model=self.base.fingerprint,
            adapter_config_json=json.dumps({"peft_type": "LORA", "r": 2, "lora_alpha": 2}),
            metadata_json="{}",
        )
        await fleet.load(published)
        if version % 10 == 9:
            await line.begin_save(version + 1)
            await line.saved()

    async def _replace(self, fleet: Fleet, index: int) -> None:
        """Kill the process in a place, if there is one, and start the next there."""
        old = self._hosts[index]
        if old:
            old[0].process.send_signal(signal.SIGKILL)
            await old[1].aclose()
        self._generation += 1
        stack = AsyncExitStack()
        new = await stack.enter_async_context(host(self.config, REPLICAS))
        members = tuple(
            Member(Identity(Role.ROLLOUT, index * REPLICAS + at, self._generation), address)
            for at, address in enumerate(new.addresses)
        )
        self._hosts[index] = new, stack, members
        for member in members:
            await fleet.admit(member)

    async def _end(self) -> None:
        for started in self._hosts:
            if started:
                await started[1].aclose()

    def _shard(self, version: int) -> tuple[ShardRef, Iterator[bytes]]:
        parts = {f"{LAYER}.lora_{part}.weight": np.full((2, 2), version, np.float32) for part in "AB"}
        places = {name: Placement((2, 2), (0, 0)) for name in parts}
        meta = ShardMeta(PublishKind.ADAPTER, version, 0, 1, self.base.fingerprint, places)
        data = save(parts, metadata=meta.to_metadata())
        digest = hashlib.sha256(data).hexdigest()
        return ShardRef(PublishKind.ADAPTER, version, 0, 1, digest, len(data)), iter([data])

    def _row(self, seconds: float) -> Row:
        gc.collect()
        hosts = tuple(footprint(started[0].process.pid) for started in self._hosts if started)
        files = sum(path.is_file() for path in self.folder.rglob("*"))
        return Row(len(self.seeds) * SIZE, seconds, footprint(), len(asyncio.all_tasks()), hosts, files)


def assert_level(rows: list[Row], mib: float) -> None:
    """Nothing grows from the middle to the end: files, threads, tasks, and memory by less than so much."""
    middle, end = rows[len(rows) // 2], rows[-1]
    assert end.tasks <= middle.tasks + 8
    assert end.files <= middle.files + 40  # what one step has and the other has not
    for before, after in zip((middle.controller, *middle.hosts), (end.controller, *end.hosts), strict=True):
        assert after.rss_mib <= before.rss_mib + mib
        assert after.files <= before.files + 12
    assert end.controller.threads <= middle.controller.threads + 8
    # an environment's thread is kept for the next episode: no more than there are seats, and as many that still close
    assert all(one.threads <= 2 * REPLICAS * SEATS + 32 for one in end.hosts)
