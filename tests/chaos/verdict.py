"""What must be true of a run that suffered, held against one of the same config to which nothing happened."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tandem.envs import tasks
from tests.chaos.rehearsal import NAME, Suffered
from tests.chaos.settings import GROUPS
from tests.e2e.crashes import figures, tensors

Row = dict[str, float | int | str | None]


def whole(folder: Path) -> int:
    """Its versions 1 .. N, each once and in order; no seed skipped and none drawn twice; what it published reads back.
    Returns N."""
    run = folder / NAME
    versions = [row["version"] for row in figures(folder)]
    assert versions == list(range(1, len(versions) + 1))
    drawn = 0
    for version in versions:
        drawn = tasks.seeds("maze2d:tiny", "train", GROUPS, drawn)[-1] + 1
        metadata = run / f"checkpoints/states/v{version:08d}/metadata.json"
        if metadata.exists() or version == len(versions):  # a run that goes on from its journal has saved it no more
            saved = json.loads(metadata.read_text())
            assert (saved["next_seed"], saved["ahead"]) == (drawn, []), version
    for row in figures(folder):
        assert (row["rollout/groups_played"], row["rollout/failed_episodes"]) == (GROUPS, 0), row
    verify(run)
    return len(versions)


def verify(run: Path) -> None:
    """All that a run has published reads back."""
    command = [sys.executable, "-m", "tandem.cli", "checkpoints", "verify", str(run / "checkpoints")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def same(folder: Path, twin: Path) -> int:
    """Every adapter, every training state that was saved and every line of figures is the faultless run's; how many
    files there are."""
    mine, other = tensors(folder), tensors(twin)
    missing = other.keys() - mine.keys()
    assert mine.keys() <= other.keys() and all(name.startswith("states/") for name in missing), missing
    differing = sorted(name for name in mine if mine[name] != other[name])
    assert not differing, differing
    assert figures(folder) == figures(twin)
    return len(mine)


def times(suffered: Sequence[Suffered]) -> list[Row]:
    """By kind: how many faults, and how long until all was well again, in seconds. Those that came while another was
    mended are told with that other."""
    rows = []
    for kind in dict.fromkeys(fault.fault.kind for fault in suffered):
        found = [fault.seconds for fault in suffered if fault.fault.kind is kind and fault.seconds == fault.seconds]
        rows.append(
            {
                "fault": kind.value,
                "count": sum(fault.fault.kind is kind for fault in suffered),
                "median_s": round(statistics.median(found), 1) if found else None,
                "worst_s": round(max(found), 1) if found else None,
            }
        )
    return rows


def table(rows: Sequence[Row]) -> str:
    """For people."""
    lines = [f"{'fault':<26}{'count':>6}{'median s':>10}{'worst s':>9}"]
    lines += [f"{r['fault']:<26}{r['count']:>6}{r['median_s'] or '-':>10}{r['worst_s'] or '-':>9}" for r in rows]
    return "\n".join(lines)
