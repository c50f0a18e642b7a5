"""`run.deterministic`: two runs of one config end in the same bytes, though one of them was stopped and went on."""

import subprocess
from pathlib import Path

import pytest

from tests.e2e.runs import command, interrupted, rows

SETTINGS = [
    "run.deterministic=true",
    "run.steps=4",
    "rollout.replicas=2",
    "checkpoint.state_every=1",
    "eval.fixed=0",
    "eval.styles=0",
    "eval.larger=0",
]


@pytest.mark.vllm
@pytest.mark.ray
@pytest.mark.timeout(900)
def test_two_runs_end_in_the_same_bytes(tmp_path: Path) -> None:
    whole, halved = tmp_path / "whole", tmp_path / "halved"
    for folder in (whole, halved):
        folder.mkdir()
    subprocess.run(command(whole, *SETTINGS), check=True, timeout=300, cwd=whole)
    interrupted(halved, *SETTINGS, after_rows=1)
    assert 1 <= len(rows(halved)) < 4
    subprocess.run(command(halved, *SETTINGS, "--resume"), check=True, timeout=300, cwd=halved)
    files = [
        "adapters/v00000004/adapter_model.safetensors",
        "states/v00000004/training_state.safetensors",
    ]
    for file in files:
        one, other = ((folder / "e2e/checkpoints" / file).read_bytes() for folder in (whole, halved))
        assert one == other
    same = ("rollout/solve_rate", "rollout/turns", "loss", "grad_norm", "rollout_learner_logprob_gap_max")
    assert [[row[name] for name in same] for row in rows(whole)] == [
        [row[name] for name in same] for row in rows(halved)
    ]
