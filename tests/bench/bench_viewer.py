"""What a recording of 100,000 episodes costs whoever looks at it, against one of 10,000; the index is the writer's."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tandem.storage.episode_index import INDEX
from tandem.storage.episode_lines import TRAIN, Beside, Label
from tandem.storage.episodes import EpisodeWriter, train_part
from tandem.types import FinishReason, StopReason, Trajectory, TrajectoryGroup, Turn
from tandem_viewer.library import AT_ONCE, Library
from tandem_viewer.shown import row
from tests.bench.report import show

MEMBERS, GROUPS_PER_STEP, REPEATS = 8, 64, 3


def group(seed: int, version: int) -> TrajectoryGroup:
    turn = Turn((1, 2, 3), (4, 5), (-0.1, -0.2), (), version, f"('move', {seed % 4})", "Moved.", 0.0, FinishReason.STOP)
    members = [Trajectory(m, (turn,) * 7, StopReason.TERMINATED, float((seed + m) % 3 == 0)) for m in range(MEMBERS)]
    return TrajectoryGroup(f"v{version}-t{seed}", "maze2d:tiny", seed, version, tuple(members), {})


def recorded(folder: Path, episodes: int) -> float:
    """Write so many; milliseconds a group."""
    writer, began, steps = EpisodeWriter(folder), time.perf_counter(), episodes // (MEMBERS * GROUPS_PER_STEP)
    for version in range(steps):
        groups = [group(GROUPS_PER_STEP * version + n, version) for n in range(GROUPS_PER_STEP)]
        advantages = {g.group_id: dict.fromkeys(range(MEMBERS), 0.5) for g in groups}
        writer.write(groups, Beside(Label(TRAIN, version), advantages), train_part(version))
    return 1000 * (time.perf_counter() - began) / (steps * GROUPS_PER_STEP)


@pytest.mark.timeout(1200)
def test_opening_and_listing(tmp_path: Path) -> None:
    sizes = {"100,000": 100_352, "10,000": 10_240}
    write = {name: [recorded(tmp_path / name, episodes)] for name, episodes in sizes.items()}
    opening: dict[str, list[float]] = {name: [] for name in sizes}
    listing: dict[str, list[float]] = {name: [] for name in sizes}
    growing: dict[str, list[float]] = {name: [] for name in sizes}
    for _ in range(REPEATS):
        for name in sizes:
            began = time.perf_counter()
            library = Library(tmp_path / name)
            opening[name].append(1000 * (time.perf_counter() - began))
            began, page = time.perf_counter(), library.page("", 0)
            for start in range(0, page.total, AT_ONCE):
                found = library.page(page.edition, start)
                json.dumps([row(source, entry) for source, entry in found.entries])
            listing[name].append(1000 * (time.perf_counter() - began))
            assert library.bytes_read == (tmp_path / name / INDEX).stat().st_size
            EpisodeWriter(tmp_path / name).write([replace(group(1, 0), seed=10**6)], part=train_part(0))
            began = time.perf_counter()
            library.page(page.edition, page.total)
            growing[name].append(1000 * (time.perf_counter() - began))
    show("record a group of 8 episodes", "ms", write)
    show("open a recording: its index read and checked", "ms", opening)
    show("list all its episodes, as JSON", "ms", listing)
    show("look for what is new, one group", "ms", growing)
