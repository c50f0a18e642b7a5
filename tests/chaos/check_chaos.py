"""`make chaos`: a seeded schedule of faults on a real Ray cluster of four nodes (SEED=, FAULTS=, ENGINE=, MODE=)."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest

from tests.chaos.asynchronous import ASYNCHRONOUS, accounted, ages, kept_journals
from tests.chaos.rehearsal import NAME
from tests.chaos.schedule import OF_VLLM, Kind, drawn
from tests.chaos.settings import SETTINGS, VLLM
from tests.chaos.trial import TRIED, judged, tried
from tests.chaos.verdict import table, times
from tests.nodes import ray_cluster

SEED = int(os.environ.get("SEED", "0")) or random.SystemRandom().randrange(1, 10**6)
FAULTS = int(os.environ.get("FAULTS", "0")) or 50
ENGINE = os.environ.get("ENGINE", "") or "simulated"
MODE = os.environ.get("MODE", "") or "sync"
# Some of the kinds alone: KINDS="kill engine,kill node"
NAMED = os.environ.get("KINDS", "")
KINDS = (
    [Kind(name) for name in NAMED.split(",")] if NAMED else [k for k in Kind if ENGINE == "vllm" or k not in OF_VLLM]
)
PLAIN = {"RAY_worker_niceness": "0"}  # of 15 that Ray gives them, for no other work is to be done here


@pytest.mark.ray
@pytest.mark.vllm
@pytest.mark.timeout(6 * 3600)
def test_every_fault_is_survived(tmp_path: Path) -> None:
    print(f"\nSEED={SEED} FAULTS={FAULTS} ENGINE={ENGINE} MODE={MODE}", flush=True)
    settings = (*SETTINGS, f"rollout.engine.kind={ENGINE}", *(VLLM if ENGINE == "vllm" else ()))
    faults = drawn(SEED, FAULTS, KINDS)
    with ray_cluster(Path(os.environ["HOME"]) / "n", workers=3, cpus=2, environment=PLAIN) as cluster:
        if MODE == "async":
            with kept_journals(tmp_path / TRIED / NAME, tmp_path / "journals"):
                suffered = tried(tmp_path, cluster, faults, (*settings, *ASYNCHRONOUS))
        else:
            suffered = tried(tmp_path, cluster, faults, settings)
    rows = times(suffered)
    print(table(rows), flush=True)
    written = Path(os.environ.get("CHAOS_JSON", "build/chaos.json"))
    written.parent.mkdir(parents=True, exist_ok=True)
    written.write_text(json.dumps({"seed": SEED, "engine": ENGINE, "mode": MODE, "faults": rows}, indent=1) + "\n")
    print(f"written to {written}", flush=True)
    if MODE == "async":
        run = tmp_path / TRIED / NAME
        steps = accounted(run, tmp_path / "journals")
        print(f"{len(suffered)} faults in {steps} steps: every group learned from once; ages {ages(run)}; SEED={SEED}")
        return
    print("now a run without any fault", flush=True)
    steps, files = judged(tmp_path, settings)
    print(
        f"{len(suffered)} faults in {steps} steps: all {files} published files and all figures as without; SEED={SEED}"
    )
