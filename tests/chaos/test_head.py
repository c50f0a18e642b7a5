"""Ray's head dies under a run: its GCS alone, or the whole node with all that is on it; the run ends as without."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandem.types import Identity, Role, RunStatus
from tests.chaos.rehearsal import WELL_S, Rehearsal
from tests.chaos.settings import SETTINGS, TURNS
from tests.chaos.trial import FOR_EVER, TRIED, judged
from tests.nodes import RayCluster, ray_cluster

QUICK = (*SETTINGS, "eval.fixed=0")
PLAIN = {"RAY_worker_niceness": "0"}
AWAY_S = 20.0  # without a GCS: Ray's processes end themselves after 60 s
pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture
def cluster() -> Iterator[RayCluster]:
    with ray_cluster(Path(os.environ["HOME"]) / "n", workers=2, cpus=2, environment=PLAIN, redis=True) as cluster:
        yield cluster


def second(status: RunStatus, role: Role) -> bool:
    """Whether the first of a role serves in its second life."""
    return any(m.member.identity == Identity(role, 0, 2) and m.state == "serving" for m in status.members)


async def lives_without_a_gcs(run: Rehearsal, cluster: RayCluster) -> None:
    """A replica dies while the GCS is away, then in another such time the manager."""
    for role in (Role.ROLLOUT, Role.CHECKPOINT_MANAGER):
        before = await run.well()
        with cluster.without_gcs():
            run.service(role, 0).kill()
            if role is Role.ROLLOUT:  # the other one plays on
                assert await run.until(lambda now, then=before.version: now.version > then, AWAY_S)
            told = await run.until(lambda now, role=role: _dead(now, role), AWAY_S)
            assert told, f"the death of the {role} is not told"
        back = time.monotonic()
        assert await run.until(lambda now, role=role: second(now, role), WELL_S), run.run.said()[-6000:]
        after = await run.well()
        print(f"GCS back -> well, {role} killed: {time.monotonic() - back:.1f} s", flush=True)
        assert await run.until(lambda now, then=after.version: now.version > then, WELL_S)
    await run.disconnect()


def _dead(status: RunStatus, role: Role) -> bool:
    return any(recovery.death.member.identity.role is role for recovery in status.recoveries)


def test_a_gcs_that_is_away_stops_nothing(cluster: RayCluster, tmp_path: Path) -> None:
    run = Rehearsal(tmp_path / TRIED, cluster, *QUICK, *TURNS, FOR_EVER, restarts=0)
    try:
        asyncio.run(lives_without_a_gcs(run, cluster))
        assert run.stop() == 0, run.run.said()[-6000:]
        assert not run.left()
    finally:
        run.kill()
    steps, files = judged(tmp_path, QUICK)
    print(f"{steps} steps: all {files} published files as without")
