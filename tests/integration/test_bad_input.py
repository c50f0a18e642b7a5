"""What a user can get wrong ends with one clear line and exit code 2, and leaves nothing behind."""

import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "deploy/recipes/maze2d-cpu.yaml"


def refused(tmp_path: Path, *overrides: str, recipe: Path = RECIPE, left: Sequence[Path] = ()) -> str:
    """Run `tandem train` there; the one line it says. It leaves the files that were there (`left`)."""
    base = [f"run.dir={tmp_path}/runs", f"model.path={ROOT}/models/tiny-qwen3vl", "rollout.replicas=1"]
    command = [sys.executable, "-m", "tandem.cli", "train", str(recipe), *base, *overrides]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, cwd=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert all(path.exists() for path in left)
    assert left or not (tmp_path / "runs").exists()
    [line] = [line for line in done.stderr.splitlines() if line.startswith("tandem: ")]
    return line


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("run.stps=3", "unknown key 'run.stps'; did you mean 'steps'?"),
        ("run.steps=many", "run.steps: Input should be a valid integer"),
        ("model.path=/nowhere", "model.path /nowhere: no config.json there"),
        ("learner.lora.rank=64", "rollout.engine.max_lora_rank is 32; raise the latter"),
        ("env.id=maze2d:huge", "unknown environment 'maze2d:huge'"),
        ("env.max_turns=6", "of maze2d:tiny's tasks, by the oracle"),
    ],
)
def test_before_anything_starts(tmp_path: Path, override: str, said: str) -> None:
    assert said in refused(tmp_path, override)


@pytest.mark.ray
def test_gpus_that_are_not_there(tmp_path: Path) -> None:
    said = refused(tmp_path, "cluster.gpus=2", "rollout.replicas=2")
    assert "cluster.gpus asks for 2 GPUs but this Ray cluster has 0" in said


@pytest.mark.ray
def test_a_store_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    assert f"{tmp_path}/file" in refused(tmp_path, f"checkpoint.url={tmp_path}/file/store")


@pytest.mark.ray
def test_a_port_that_is_taken(tmp_path: Path) -> None:
    logged = tmp_path / "runs/maze2d-cpu/logs/rollout-0-g1.log"  # by an earlier life of the run
    logged.parent.mkdir(parents=True)
    logged.write_text("what it said last")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = refused(tmp_path, f"cluster.checkpoint_port={port}", left=[logged])
        assert f"cannot listen on 127.0.0.1:{port}: taken" in said
