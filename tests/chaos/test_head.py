"""Ray's head dies under a run: its GCS alone, or the whole node with all that is on it; the run ends as without."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tandem.types import Identity, Role, RunStatus
from tests.chaos.rehearsal import WELL_S, Rehearsal
from tests.chaos.settings import SETTINGS, TURNS
from tests.chaos.trial import FOR_EVER, TRIED, judged
from tests.nodes import Node, RayCluster, ray_cluster, until

QUICK = (*SETTINGS, "eval.fixed=0")
PLAIN = {"RAY_worker_niceness": "0"}
AWAY_S = 20.0  # without a GCS: Ray's processes end themselves after 60 s
ENDS_S = 120.0  # for Ray's processes to end that have lost their GCS
pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> Iterator[RayCluster]:
    folder, redis = Path(os.environ["HOME"]) / "n", getattr(request, "param", True)
    with ray_cluster(folder, workers=2, cpus=2, environment=PLAIN, redis=redis) as cluster:
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


def _ended(node: Node) -> bool:
    return node.raylet is None


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


async def loses_its_head(run: Rehearsal, cluster: RayCluster, everything: bool) -> None:
    """All on the head is killed, and with `everything` who would start the controller again; then the head is back."""
    before = await run.well()
    assert await run.until(lambda now: now.version > before.version + 2, WELL_S)
    began = time.monotonic()
    if everything:
        run.die()
    cluster.head.kill()
    cluster.add("head", cpus=0, head=True)
    print(f"head up after {time.monotonic() - began:.1f} s", flush=True)
    for name in ("w1", "w2"):
        if everything:  # a GCS that does not know them: they end, and Kubernetes starts them anew
            await asyncio.to_thread(until, partial(_ended, cluster[name]), f"end of {name}", ENDS_S)
            print(f"{name} ended after {time.monotonic() - began:.1f} s", flush=True)
            cluster[name].kill()
            await asyncio.to_thread(cluster.add, name, cpus=2)
    raylets = [cluster[name].raylet for name in ("w1", "w2")]
    if everything:
        run.again()
    new = await run.until(lambda now: now.started > before.started, WELL_S)
    assert new, run.run.said()[-6000:]
    after = await run.well()
    print(f"head lost -> well: {time.monotonic() - began:.1f} s", flush=True)
    assert [cluster[name].raylet for name in ("w1", "w2")] == raylets != [None, None], "these stay"
    assert all(m.member.node in ("head", "w1", "w2") for m in after.members)
    assert await run.until(lambda now: now.version > after.version + 2, WELL_S)
    await run.disconnect()


@pytest.mark.parametrize(("cluster", "everything"), [(True, False), (False, True)], indirect=["cluster"])
def test_a_head_that_is_lost_comes_back_and_the_run_goes_on(
    cluster: RayCluster, everything: bool, tmp_path: Path
) -> None:
    run = Rehearsal(tmp_path / TRIED, cluster, *QUICK, *TURNS, FOR_EVER)
    try:
        asyncio.run(loses_its_head(run, cluster, everything))
        assert len(cluster.services("rollout")) == 2 and len(cluster.services("learner")) == 2, (
            "none of an earlier life"
        )
        assert run.stop() == 0, run.run.said()[-6000:]
        assert not run.left()
    finally:
        run.kill()
    steps, files = judged(tmp_path, QUICK)
    print(f"{steps} steps: all {files} published files as without")
