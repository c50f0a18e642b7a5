"""A day of episodes, compressed: `make soak`. See `tests.bench.soak`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.bench.soak import GROUPS, SIZE, Soak, assert_level

EPISODES = int(os.environ.get("SOAK_EPISODES", "100000"))


@pytest.mark.timeout(7200)
async def test_nothing_grows_in_a_long_run(tmp_path: Path) -> None:
    soak = Soak(tmp_path / "soak", -(-EPISODES // (GROUPS * SIZE)), hosts=2, kills=6)
    rows = await soak.run(10)
    print(f"\nload {os.getloadavg()[0]:.0f} on {os.cpu_count()} cores; {soak.kills} processes of replicas were killed")
    for row in rows:
        print(row)
    assert len(set(soak.seeds)) == len(soak.seeds) == soak.steps * GROUPS and soak.failed == 0
    assert_level(rows, mib=48)
