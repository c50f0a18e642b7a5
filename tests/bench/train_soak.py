"""A long run of `tandem train` in a short time: simulated engines and a tiny text model, all else real. A learner that
learns, a Ray cluster, replicas that are killed and replaced, states saved and journals settled on the way.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import psutil
import ray
from ray._private.state import actors
from ray.util.placement_group import placement_group_table

from tandem.cluster import ray_session
from tandem.config.tree import ClusterConfig
from tests.bench.rehearsal import ROOT, Footprint, footprint
from tests.chaos.rehearsal import Rehearsal
from tests.chaos.schedule import Fault, Kind
from tests.chaos.trial import FOR_EVER
from tests.nodes import RayCluster

GROUPS, SIZE = 64, 8
SETTINGS = (
    f"model.path={ROOT / 'models/tiny-sort'}",
    "env.id=sort:3",
    "env.max_turns=3",
    "env.window=1",
    "rollout.replicas=2",
    f"rollout.groups_per_step={GROUPS}",
    f"rollout.group_size={SIZE}",
    "rollout.max_tokens=12",
    "rollout.max_staleness=1",
    "rollout.max_concurrent_episodes=256",
    "rollout.engine.kind=simulated",
    "rollout.engine.max_num_seqs=1024",
    "learner.world_size=1",
    "learner.microbatch_tokens=16384",
    "checkpoint.state_every=5",
    "eval.fixed=0",
    "eval.styles=0",
    "eval.larger=0",
    "cluster.start_timeout_s=240",
)
PATIENCE_S = 60.0
PARTS = ("controller", "rank 0", "manager", "replica 0", "replica 1")


@dataclass(frozen=True)
class Row:
    """How things stand after so many versions."""

    version: int
    seconds: float
    kills: int
    processes: tuple[Footprint, ...]  # as `PARTS`
    actors: dict[str, int]  # in Ray's table, by state: what has ended stays there
    groups: dict[str, int]  # of placement, likewise
    named: int
    files: int  # in the run's folder, but for recorded episodes: those have a bound of their own, `record.max_gib`

    def __str__(self) -> str:
        parts = " | ".join(f"{name} {found}" for name, found in zip(PARTS, self.processes, strict=True))
        return (
            f"{self.version * GROUPS * SIZE:7d} episodes {self.seconds:5.0f} s, {self.kills} kills | {parts} | actors "
            f"{self.actors}, {self.named} named, placement groups {self.groups} | {self.files} files on disk"
        )


class TrainSoak:
    """See the module. It trains until it is stopped, having made `steps` versions or more."""

    def __init__(self, folder: Path, cluster: RayCluster, steps: int, kills: int) -> None:
        self.steps, self.kills, self.cluster = steps, kills, cluster
        self.rehearsal = Rehearsal(folder, cluster, *SETTINGS, FOR_EVER, restarts=0)
        self.rehearsal.ranks = 1
        self._began = time.monotonic()

    async def run(self, count: int, for_s: float) -> list[Row]:
        """Train so many steps, or seconds; a row at the first one, and at equal distances."""
        rows, killed, run = list[Row](), 0, self.rehearsal
        with ray_session(ClusterConfig(address=self.cluster.address), 1):
            await run.well()
            while time.monotonic() < self._began + for_s:
                status = await run.until(lambda now: True, PATIENCE_S)
                assert status, "it does not say how it fares"
                if status.version >= min(self.steps, len(rows) * self.steps / count + 2):  # the first one warm
                    rows.append(self._row(status.version, killed))
                    print(rows[-1], flush=True)
                if killed < self.kills and status.version >= (killed + 1) * self.steps / (self.kills + 1):
                    await run.suffer(Fault(Kind.REPLICA, "generate", (killed % 2) / 2))
                    killed += 1
                if status.version >= self.steps:
                    break
                await asyncio.sleep(0.2)
        await run.disconnect()
        return rows

    def _row(self, version: int, kills: int) -> Row:
        places = (("learner", 0), ("checkpoint_manager", 0), ("rollout", 0), ("rollout", 1))
        pids = [self._controller().pid, *(self.rehearsal.service(*place).pid for place in places)]
        return Row(
            version,
            time.monotonic() - self._began,
            kills,
            tuple(map(footprint, pids)),
            dict(Counter(actor["State"] for actor in actors().values())),
            dict(Counter(group["state"] for group in placement_group_table().values())),
            len(ray.util.list_named_actors(all_namespaces=True)),
            sum(path.is_file() and "episodes" not in path.parts for path in self.rehearsal.run.folder.rglob("*")),
        )

    def _controller(self) -> psutil.Process:
        return psutil.Process(self.rehearsal.run.process.pid)


def assert_level(rows: list[Row], mib: float) -> None:
    """Nothing grows from the middle to the end: processes by less than so much memory, what lives in Ray not at all.
    What has ended stays in Ray's tables, one entry for each service that was started."""
    middle, end = rows[len(rows) // 2], rows[-1]
    killed = end.kills - middle.kills
    for name, before, after in zip(PARTS, middle.processes, end.processes, strict=True):
        assert after.rss_mib <= before.rss_mib + mib, (name, before, after)
        assert after.files <= before.files + 12, (name, before, after)
    assert end.processes[0].threads <= middle.processes[0].threads + 8
    assert (end.actors["ALIVE"], end.named) == (middle.actors["ALIVE"], middle.named)
    assert sum(end.actors.values()) <= sum(middle.actors.values()) + killed
    assert sum(end.groups.values()) <= sum(middle.groups.values()) + killed
    assert end.files <= middle.files + 20 + 2 * killed
