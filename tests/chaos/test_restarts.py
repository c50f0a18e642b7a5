"""`--restarts`: a controller that is killed is started again, and goes on from its journal."""

import os
import subprocess
from datetime import datetime
from pathlib import Path

import pytest

from tandem.runtime.faults import VARIABLE
from tests.e2e.runs import command, rows

SETTINGS = [
    "rollout.engine.kind=simulated",
    "run.steps=3",
    "rollout.groups_per_step=2",
    "learner.world_size=1",
    "checkpoint.state_every=100",  # nothing is saved before the end
    "eval.fixed=0",
    "eval.styles=0",
    "eval.larger=0",
]


@pytest.mark.ray
@pytest.mark.timeout(600)
def test_a_killed_controller_is_started_again_and_plays_nothing_twice(tmp_path: Path) -> None:
    killed = {**os.environ, VARIABLE: "controller/log/done@2"}
    ran = subprocess.run(
        command(tmp_path, *SETTINGS, "--restarts", "2"), capture_output=True, text=True, cwd=tmp_path, env=killed
    )
    said = ran.stdout + ran.stderr
    assert ran.returncode == 0, said
    assert said.count("the controller ended by SIGKILL; it goes on from its journal") == 1
    assert [row["version"] for row in rows(tmp_path)] == [1, 2, 3]
    assert [path.name[:9] for path in (tmp_path / "e2e/journal").iterdir()] == ["v00000003"]
    first, second = starts(tmp_path / "e2e/logs/rollout-0-g1.log")
    times = [row["time"] for row in rows(tmp_path)]
    assert first < times[0] < times[1] < second < times[2]  # the first two steps were not made again


def starts(log: Path) -> list[float]:
    """When a service was started, in Unix seconds: each start writes a line of its own."""
    lines = [line.split() for line in log.read_text().splitlines() if line.startswith("--- ")]
    return [datetime.fromisoformat(line[1]).timestamp() for line in lines]
