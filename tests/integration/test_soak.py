"""The short form of `make soak`: a few thousand episodes through real services; nothing grows, no group is lost."""

from __future__ import annotations

from pathlib import Path

from tests.bench.soak import GROUPS, Soak, assert_level


async def test_nothing_grows_while_groups_go_by(tmp_path: Path) -> None:
    soak = Soak(tmp_path / "soak", 6, hosts=1, kills=0)
    rows = await soak.run(6)
    assert len(set(soak.seeds)) == len(soak.seeds) == 6 * GROUPS and soak.failed == 0
    assert_level(rows, mib=24)
