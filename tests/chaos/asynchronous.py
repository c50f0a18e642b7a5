"""What must be true of a run that played ahead of its learner and suffered: its bytes are its own, its books are not.

The journal's files go as states are saved; hard links keep them here, so that every step can be counted at the end.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread

from tandem.envs import tasks
from tandem_controller.journal import Journal, Step
from tests.chaos.settings import GROUPS
from tests.chaos.verdict import verify
from tests.e2e.crashes import figures

STALENESS = 2
ASYNCHRONOUS = ("run.deterministic=false", f"rollout.max_staleness={STALENESS}")
EVERY_S = 0.05


@contextmanager
def kept_journals(run: Path, to: Path) -> Iterator[None]:
    """Keep what is ever in a run's journal, while the body runs; a folder for each inode, for a name may come again."""
    to.mkdir()
    over = Event()

    def look() -> None:
        for path in (run / "journal").glob("v*.journal"):
            with suppress(FileNotFoundError, FileExistsError):
                folder = to / str(path.stat().st_ino)
                folder.mkdir(exist_ok=True)
                os.link(path, folder / path.name)

    def keep() -> None:
        while not over.wait(EVERY_S):
            look()
        look()

    keeping = Thread(target=keep)
    keeping.start()
    try:
        yield
    finally:
        over.set()
        keeping.join()


def steps(kept: Path) -> Iterator[Step]:
    """All that were ever written, some of them in several files."""
    for folder in kept.iterdir():
        for path in folder.iterdir():
            settings = path.stem.rpartition("-")[2]
            first = int(path.stem[1:9])
            yield from Journal(folder, settings).steps(first)


def accounted(run: Path, kept: Path) -> int:
    """Versions 1 .. N, each once and in order; every seed drawn is learned from in one of them or still ahead, and in
    no two; no group failed, none was older than allowed; what was published reads back. Returns N."""
    rows = figures(run.parent)
    assert [row["version"] for row in rows] == list(range(1, len(rows) + 1))
    for row in rows:
        assert (row["rollout/groups_played"], row["rollout/groups_learned"]) == (GROUPS, GROUPS), row
        assert row["rollout/failed_episodes"] == 0 and row["rollout/staleness_max"] <= STALENESS, row
    learned = dict[int, tuple[int, ...]]()
    for step in steps(kept):
        if step.version < len(rows):  # the last one may have been cut off before it was learned
            assert learned.setdefault(step.version, step.seeds) == step.seeds, f"step {step.version} learned from two"
    assert sorted(learned) == list(range(len(rows)))
    saved = json.loads((run / f"checkpoints/states/v{len(rows):08d}/metadata.json").read_text())
    met = [seed for seeds in learned.values() for seed in seeds]
    ahead = [seed for seeds in saved["ahead"] for seed in seeds]
    drawn = tasks.seeds("maze2d:tiny", "train", len(met) + len(ahead))
    assert sorted(met + ahead) == list(drawn) and saved["next_seed"] == drawn[-1] + 1
    verify(run)
    return len(rows)


def ages(run: Path) -> dict[int, int]:
    """How many steps had groups of that many versions' age, at most."""
    found = [row["rollout/staleness_max"] for row in figures(run.parent)]
    return {int(age): found.count(age) for age in sorted(set(found))}
