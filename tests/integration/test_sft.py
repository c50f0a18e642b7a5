"""`tandem sft` with real services, as a user would run it: adapters, whole models, resuming, other starts."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tandem.config import load_recipe
from tandem.model.loading import load_model
from tandem.storage.episodes import write_groups
from tandem_controller.demonstrations import Expert

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "deploy/recipes/maze2d-cpu.yaml"
SMALL = ["learner.lr_final=1", "sft.batch=8", "checkpoint.state_every=100", f"model.path={ROOT}/models/tiny-qwen3vl"]


def command(folder: Path, name: str, *more: str, verb: str = "sft") -> list[str]:
    where = [f"run.dir={folder}", f"run.name={name}"]
    return [sys.executable, "-m", "tandem.cli", verb, str(RECIPE), *SMALL, *where, *more]


def run(folder: Path, name: str, *more: str, verb: str = "sft") -> str:
    done = subprocess.run(
        command(folder, name, *more, verb=verb), capture_output=True, text=True, timeout=200, cwd=folder
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def refused(folder: Path, name: str, *more: str, verb: str = "sft") -> str:
    done = subprocess.run(
        command(folder, name, *more, verb=verb), capture_output=True, text=True, timeout=200, cwd=folder
    )
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stdout + done.stderr
    assert not (folder / name / "config.yaml").exists()
    [line] = [line for line in done.stderr.splitlines() if line.startswith("tandem: ")]
    return line


def rows(folder: Path, name: str) -> list[dict]:
    path = folder / name / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def adapter(folder: Path, name: str, version: int) -> Path:
    return folder / name / f"checkpoints/adapters/v{version:08d}"


@pytest.mark.ray
@pytest.mark.slow
def test_an_interrupted_run_goes_on_as_if_nothing_had_been(tmp_path: Path) -> None:
    process = subprocess.Popen(
        command(tmp_path, "a", "run.steps=500", "sft.skill=0.8"), stdout=subprocess.PIPE, text=True, cwd=tmp_path
    )
    until = time.monotonic() + 120
    while not rows(tmp_path, "a") and process.poll() is None:
        assert time.monotonic() < until
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=120)
    done = len(rows(tmp_path, "a"))
    assert process.returncode == 0 and f"stopped and saved at version {done}; continue with --resume" in said
    assert f"stopped: {done} of 500 steps" in (tmp_path / "a/report.md").read_text()
    assert "adapter published at" in run(tmp_path, "a", f"run.steps={done + 2}", "sft.skill=0.8", "--resume")
    assert f"finished: {done + 2} of {done + 2} steps" in (tmp_path / "a/report.md").read_text()
    run(tmp_path, "b", f"run.steps={done + 2}", "sft.skill=0.8")
    assert [row["version"] for row in rows(tmp_path, "a")] == list(range(1, done + 3))
    assert [row["loss"] for row in rows(tmp_path, "a")] == [row["loss"] for row in rows(tmp_path, "b")]
    tensors = [load_file(adapter(tmp_path, name, done + 2) / "adapter_model.safetensors") for name in "ab"]
    assert all(torch.equal(tensors[0][name], tensors[1][name]) for name in tensors[1])


@pytest.mark.ray
@pytest.mark.slow
def test_an_adapter_is_a_start_and_so_is_a_whole_model_made_of_recorded_episodes(tmp_path: Path) -> None:
    run(tmp_path, "first", "run.steps=12")
    losses = [row["loss"] for row in rows(tmp_path, "first")]
    assert losses[-1] < 0.7 * losses[0]
    start = adapter(tmp_path, "first", 12)
    run(tmp_path, "second", "run.steps=1", f"model.adapter={start}")
    assert rows(tmp_path, "second")[0]["loss"] < 0.7 * losses[0], "the same tasks, the base model's loss on them first"
    again = load_file(adapter(tmp_path, "second", 0) / "adapter_model.safetensors")
    assert all(
        torch.equal(again[name], tensor) for name, tensor in load_file(start / "adapter_model.safetensors").items()
    )

    config = load_recipe(RECIPE, [*SMALL, "sft.skill=0.9"])
    write_groups(tmp_path / "episodes", Expert(config).take(1000)[0])
    full = ["learner.trainable=full", "learner.lr=1e-3", "learner.world_size=2", f"sft.episodes={tmp_path}/episodes"]
    said = run(tmp_path, "third", "run.steps=4", *full)
    model = tmp_path / "third/checkpoints/models/v00000004"
    assert f"model published at {model}" in said.replace("\n", "")
    losses = [row["loss"] for row in rows(tmp_path, "third")]
    assert losses[-1] < losses[0]
    base = dict(load_model(ROOT / "models/tiny-qwen3vl").named_parameters())
    assert all(not torch.equal(base[name], p) for name, p in load_model(model).named_parameters())


@pytest.mark.ray
@pytest.mark.slow
def test_what_cannot_be_is_one_line(tmp_path: Path) -> None:
    assert "index.jsonl: cannot be read" in refused(tmp_path, "a", "sft.episodes=/nowhere")
    assert "`tandem sft`'s" in refused(tmp_path, "a", "learner.algo.loss=sft", verb="train")
    assert "`tandem sft`'s" in refused(tmp_path, "a", "learner.trainable=full", verb="train")
    assert "correction has no effect with loss sft" in refused(tmp_path, "a", "learner.algo.correction.kind=mask")
    assert "/nowhere" in refused(tmp_path, "a", "model.adapter=/nowhere")
