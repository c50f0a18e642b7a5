"""`run.deterministic`: two runs of one config end in the same bytes, though one of them was killed and went on,
and had its adapters sent to the replicas directly where the other's replicas loaded them from the store.

Every phase boundary and random instants: `make resume-check`.
"""

import json
from pathlib import Path

import pytest

from tests.e2e.crashes import Run, figures, tensors

SETTINGS = [
    "run.deterministic=true",
    "run.steps=4",
    "rollout.replicas=2",
    "checkpoint.state_every=1",
    "eval.fixed=0",
    "eval.styles=0",
    "eval.larger=0",
]
KILLED = [*SETTINGS, "sync.transport=grpc"]


@pytest.mark.vllm
@pytest.mark.ray
@pytest.mark.timeout(1800)
def test_two_runs_end_in_the_same_bytes(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert Run(whole, *SETTINGS).wait() == 0
    in_a_save = Run(killed, *KILLED, fault="controller/state/exported@2")  # its line is there, its state not
    assert in_a_save.wait() == -9
    assert not in_a_save.left()  # of itself: engine, ranks, manager, Ray
    assert [row["version"] for row in figures(killed)][:2] == [1, 2]
    refused = Run(killed, *KILLED, "run.seed=1", "--resume")
    assert refused.wait() == 2
    assert "run.seed: 0 -> 1 (makes it another run); give the old values" in refused.said()
    last = Run(killed, *KILLED, "--resume")
    assert last.wait() == 0, last.said()
    assert "directly" not in last.said()  # no replica had to fall back on the store
    assert_same(tensors(whole), tensors(killed))
    assert figures(whole) == figures(killed)
    assert [row["version"] for row in figures(whole)] == [1, 2, 3, 4]
    assert run_id(killed) == json.loads((killed / "e2e/run.json").read_text())["run_id"] != run_id(whole)


def assert_same(whole: dict[str, bytes], killed: dict[str, bytes]) -> None:
    """Which states were saved on the way, and so which adapters stay, depends on when a run was killed; no bytes do."""
    both = whole.keys() & killed.keys()
    adapters = {f"adapters/v{version:08d}/adapter_model.safetensors" for version in (2, 3, 4)}
    assert both >= {*adapters, "states/v00000004/training_state.safetensors"}
    assert {name: whole[name] for name in both} == {name: killed[name] for name in both}


def run_id(folder: Path) -> str:
    saved = json.loads((folder / "e2e/checkpoints/states/v00000004/metadata.json").read_text())
    return saved["run_id"]
