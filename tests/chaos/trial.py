"""A whole trial: a run suffers a schedule of faults, is ended in order, and is held against its faultless twin."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

from tests.chaos.rehearsal import Rehearsal, Suffered
from tests.chaos.schedule import Fault
from tests.chaos.settings import SETTINGS, TURNS
from tests.chaos.verdict import same, whole
from tests.e2e.crashes import Run
from tests.nodes import RayCluster

TRIED = "tried"
FOR_EVER = "run.steps=100000"


def tried(
    folder: Path, cluster: RayCluster | None, faults: Sequence[Fault], settings: Sequence[str] = SETTINGS
) -> list[Suffered]:
    """A run that suffers, in a folder below that; what came, and how long each took to mend. AssertionError where the
    run does not come through, or leaves anything running."""
    folder.mkdir(parents=True, exist_ok=True)
    rehearsal = Rehearsal(folder / TRIED, cluster, *settings, *TURNS, FOR_EVER)
    try:
        suffered = asyncio.run(_suffer(rehearsal, faults))
        assert rehearsal.stop() == 0, rehearsal.run.said()[-6000:]
        left = rehearsal.left()
        assert not left, left
    finally:
        rehearsal.kill()
    return suffered


def judged(folder: Path, settings: Sequence[str] = SETTINGS) -> tuple[int, int]:
    """Hold what `tried` left there against a faultless run on this machine alone; its steps, and published files."""
    steps = whole(folder / TRIED)
    twin = Run(folder / "twin", *settings, f"run.steps={steps}")
    try:
        assert twin.wait(3600) == 0, twin.said()[-6000:]
    finally:
        twin.kill()
    return steps, same(folder / TRIED, folder / "twin")


async def _suffer(rehearsal: Rehearsal, faults: Sequence[Fault]) -> list[Suffered]:
    await rehearsal.well()
    suffered = list[Suffered]()
    for number, fault in enumerate(faults):
        follows = number + 1 < len(faults) and faults[number + 1].soon
        suffered.append(found := await rehearsal.suffer(fault, wait=not follows))
        mended = "" if follows else f", well after {found.seconds:.1f} s"
        print(
            f"{time.strftime('%X')} {number + 1:3}/{len(faults)} v{found.version} {fault}: {found.hit}{mended}",
            flush=True,
        )
    await rehearsal.disconnect()
    return suffered
