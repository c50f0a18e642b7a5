"""`rollout.max_staleness`: engines play ahead; a run that is killed loses no group, and learns from none twice."""

import json
import os
import signal
import subprocess
import time
from datetime import timedelta
from pathlib import Path

import pytest

from tandem.envs import tasks
from tandem.rpc.certs import make_certificates
from tests.e2e.runs import command, rows

STEPS, GROUPS = 6, 6  # as in `runs.SMALL`
SETTINGS = [
    f"run.steps={STEPS}",
    "rollout.max_staleness=1",
    "checkpoint.state_every=2",
    "learner.world_size=1",
    "eval.fixed=0",
    "eval.styles=0",
    "eval.larger=0",
]


def killed(folder: Path, after_rows: int) -> None:
    """Start a run and kill -9 all of it once so many steps are logged."""
    running = subprocess.Popen(command(folder, *SETTINGS), cwd=folder, start_new_session=True)
    until = time.monotonic() + 240
    while len(rows(folder)) < after_rows and running.poll() is None and time.monotonic() < until:
        time.sleep(0.05)
    assert running.poll() is None
    os.killpg(running.pid, signal.SIGKILL)
    running.wait()


@pytest.mark.vllm
@pytest.mark.ray
@pytest.mark.timeout(600)
def test_a_killed_run_learns_from_every_group_once(tmp_path: Path) -> None:
    killed(tmp_path, after_rows=3)
    before = len(rows(tmp_path))
    make_certificates(tmp_path / "tls", timedelta(days=1))
    resume = command(tmp_path, *SETTINGS, f"security.tls_dir={tmp_path}/tls", "--resume")
    done = subprocess.run(resume, capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "groups were played already when the run ended" in done.stderr
    made = rows(tmp_path)
    assert [row["version"] for row in made] == list(range(1, STEPS + 1)) and before < STEPS
    assert {row["rollout/groups_learned"] for row in made} == {GROUPS}
    assert max(row["rollout/staleness_max"] for row in made) == 1
    saved = json.loads((tmp_path / f"e2e/checkpoints/states/v{STEPS:08d}/metadata.json").read_text())
    drawn = tasks.seeds("maze2d:tiny", "train", STEPS * GROUPS)
    assert (saved["next_seed"], saved["ahead"]) == (drawn[-1] + 1, [])
