"""Runs for the end-to-end tests: the demo's recipe, small, through the command line."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "deploy/recipes/maze2d-cpu.yaml"
MODEL = ROOT / "models/tiny-qwen3vl"
SMALL = [
    "run.name=e2e",
    "rollout.replicas=1",
    "rollout.groups_per_step=6",
    "rollout.group_size=4",
    "rollout.engine.max_model_len=1024",
    "learner.world_size=2",
    "eval.fixed=4",
    "eval.heldout=0",
    "eval.styles=1",
    "eval.larger=1",
    "eval.samples=0",
    "eval.every=0",
    "checkpoint.state_every=2",
]


def command(folder: Path, *more: str, verb: str = "train") -> list[str]:
    where = [f"run.dir={folder}", f"model.path={MODEL}"]
    return [sys.executable, "-m", "tandem.cli", verb, str(RECIPE), *where, *SMALL, *more]


def rows(folder: Path) -> list[dict]:
    path = folder / "e2e/metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def interrupted(folder: Path, *more: str, after_rows: int) -> str:
    """Train until so many steps are logged, then do what Ctrl-C in a terminal does; what it printed."""
    running = subprocess.Popen(
        command(folder, *more),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=folder,
        start_new_session=True,
    )
    try:
        until = time.monotonic() + 240
        while len(rows(folder)) < after_rows and running.poll() is None and time.monotonic() < until:
            time.sleep(0.2)
        assert running.poll() is None, running.communicate()[0]
        os.killpg(running.pid, signal.SIGINT)
        output, _ = running.communicate(timeout=120)
    finally:
        running.kill()
    assert running.returncode == 0, output
    return output
