"""A day of episodes, compressed: `make soak`. See `tests.bench.soak` and `tests.bench.train_soak`."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.bench.soak import GROUPS, SIZE, Soak, assert_level
from tests.bench.train_soak import TrainSoak
from tests.bench.train_soak import assert_level as assert_train_level
from tests.nodes import ray_cluster

EPISODES = int(os.environ.get("SOAK_EPISODES", "100000"))
SECONDS = float(os.environ.get("SOAK_SECONDS", "3600"))


@pytest.mark.timeout(7200)
async def test_nothing_grows_in_a_long_run(tmp_path: Path) -> None:
    soak = Soak(tmp_path / "soak", -(-EPISODES // (GROUPS * SIZE)), hosts=2, kills=6)
    rows = await soak.run(10)
    print(f"\nload {os.getloadavg()[0]:.0f} on {os.cpu_count()} cores; {soak.kills} processes of replicas were killed")
    for row in rows:
        print(row)
    assert len(set(soak.seeds)) == len(soak.seeds) == soak.steps * GROUPS and soak.failed == 0
    assert_level(rows, mib=48)


@pytest.mark.ray
@pytest.mark.timeout(7200)
async def test_nothing_grows_in_a_long_run_with_ray_and_a_learner(tmp_path: Path) -> None:
    """As many episodes, but no longer than SOAK_SECONDS."""
    with ray_cluster(Path(os.environ["HOME"]) / "n", workers=1, cpus=4) as cluster:
        soak = TrainSoak(tmp_path / "train", cluster, -(-EPISODES // (GROUPS * SIZE)), kills=6)
        try:
            rows = await soak.run(10, SECONDS)
            assert soak.rehearsal.stop() == 0, soak.rehearsal.run.said()[-6000:]
            assert not soak.rehearsal.left()
        finally:
            soak.rehearsal.kill()
    made = [json.loads(line) for line in (soak.rehearsal.folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["version"] for row in made] == list(range(1, len(made) + 1))
    assert {row["rollout/groups_learned"] for row in made} == {GROUPS}
    print(f"{len(made) * GROUPS * SIZE} episodes, load {os.getloadavg()[0]:.0f} on {os.cpu_count()} cores")
    assert_train_level(rows, mib=48)
