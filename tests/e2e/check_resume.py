"""Exact resume, the whole matrix: `make resume-check`.

A deterministic run is ended by kill -9 at every phase boundary and at random instants, and goes on each time. Each
adapter and each training state that it saves must have the bytes of a run that nothing happened to, and in the end
metrics.jsonl must say the same but for times. One run dies many times: it is resumed with the next death waiting.
"""

import json
import os
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tandem.runtime.faults import CONTROLLER, MANAGER
from tests.e2e.crashes import Run, figures, tensors

STEPS = int(os.environ.get("STEPS", "40"))
INSTANTS = int(os.environ.get("INSTANTS", "20"))
SEED = int(os.environ.get("SEED", "0")) or random.SystemRandom().randrange(1, 10**6)
ONLY = os.environ.get("ONLY", "")  # points that contain this
SETTINGS = [
    "run.deterministic=true",
    f"run.steps={STEPS}",
    "checkpoint.keep=1000",
    "learner.world_size=1",
    "env.max_turns=13",
    "rollout.groups_per_step=3",
    "rollout.engine.max_model_len=256",
    "eval.fixed=2",
    "eval.every=3",
    "eval.styles=0",
    "eval.larger=0",
]
NOT_HERE = ("controller/model/", "manager/remove/")


@dataclass(frozen=True)
class Death:
    """`point` of a process, which is killed alone or with all others; or seconds after the start (`early`) or after the
    first step."""

    point: str = ""
    alone: bool = False
    after_s: float = 0.0
    early: bool = False
    state_every: int = 1

    def __str__(self) -> str:
        where = self.point or f"{self.after_s:.1f} s after the {'start' if self.early else 'first step'}"
        return f"{where}{', alone' if self.alone else ''}, state_every {self.state_every}"


def deaths(dice: random.Random, start_s: float, step_s: float) -> Iterator[Death]:
    """All that is to be survived, in a random order."""
    points = [point for point in (*CONTROLLER, *MANAGER) if ONLY in point and not point.startswith(NOT_HERE)]
    found = []
    for index, point in enumerate(points):
        times = 1 if "/start/" in point or "/open/" in point or "/recover/" in point else dice.choice((1, 2, 3))
        found.append(Death(f"{point}@{times}", alone=index % 3 == 0, state_every=1 + index % 2))
    for index in range(INSTANTS):
        early = index % 4 == 0
        after = dice.uniform(0, start_s if early else 4 * step_s)
        found.append(Death(after_s=after, early=early, state_every=1 + index % 2))
    dice.shuffle(found)
    return iter(found)


def until(what: Callable[[], bool], run: Run, timeout_s: float = 900) -> None:
    end = time.monotonic() + timeout_s
    while run.process.poll() is None and not what():
        assert time.monotonic() < end, run.said()[-3000:]
        time.sleep(0.02)


def die(run: Run, death: Death) -> bool:
    """See to it; whether it came to pass."""
    if death.point:
        until(lambda: False, run)
        if death.alone:
            left = run.left()
            assert not left, left
        run.kill()
        return run.process.returncode != 0
    before = run.rows()
    if not death.early:
        until(lambda: run.rows() > before, run)
    due = time.monotonic() + death.after_s
    until(lambda: time.monotonic() >= due, run)
    died = run.process.poll() is None
    run.kill()
    return died


def same_bytes(whole: dict[str, bytes], folder: Path) -> int:
    """How many published files there are, all of them as in the uninterrupted run."""
    found = tensors(folder)
    differing = [name for name, data in found.items() if whole[name] != data]
    assert not differing, differing
    return len(found)


def finished(folder: Path, *more: str) -> float:
    """Train to the end; the seconds it took."""
    began = time.monotonic()
    run = Run(folder, *SETTINGS, *more)
    code = run.wait(3000)
    assert code == 0, run.said()[-3000:]
    assert not run.left()
    return time.monotonic() - began


@pytest.mark.vllm
@pytest.mark.ray
@pytest.mark.timeout(6 * 3600)
def test_every_death_is_survived_exactly(tmp_path: Path) -> None:
    whole_folder, folder = tmp_path / "whole", tmp_path / "killed"
    print(f"\nSEED={SEED}; {STEPS} steps without interruption ...", flush=True)
    took = finished(whole_folder, "checkpoint.state_every=1")
    whole, rows = tensors(whole_folder), figures(whole_folder)
    seconds = [sum(v for k, v in json.loads(line).items() if k.startswith("seconds/")) for line in lines(whole_folder)]
    step_s = sum(seconds) / len(seconds)
    print(f"{took:.0f} s, {step_s:.1f} s a step", flush=True)
    survived = missed = chains = 0
    for death in (waiting := list(deaths(random.Random(SEED), took - sum(seconds), step_s))):
        used = (folder / "e2e/config.yaml").exists()
        before = last_saved(folder)
        resume = ["--resume"] if used else []
        run = Run(folder, *SETTINGS, f"checkpoint.state_every={death.state_every}", *resume, fault=death.point)
        died = die(run, death)
        survived, missed = survived + died, missed + (not died)
        files = same_bytes(whole, folder)
        reached = f"v{before} -> v{last_saved(folder)}, {run.rows()} rows, {files} files the same"
        print(f"{survived + missed:3}/{len(waiting)} {death}: {'' if died else 'MISSED, '}{reached}", flush=True)
        if last_saved(folder) >= STEPS - 4:
            chains += 1
            finish(folder, whole, rows)
            folder = tmp_path / f"killed-{chains}"
    finish(folder, whole, rows)
    print(f"{survived} deaths survived exactly, {missed} missed, {chains + 1} runs to the end; SEED={SEED}")
    assert not missed


def lines(folder: Path) -> list[str]:
    return (folder / "e2e/metrics.jsonl").read_text().splitlines()


def last_saved(folder: Path) -> int:
    return max(
        (int(path.parent.name[1:]) for path in folder.glob("e2e/checkpoints/states/v*/manifest.json")), default=0
    )


def finish(folder: Path, whole: dict[str, bytes], rows: list[dict]) -> None:
    """Go on to the end, and compare everything."""
    if (folder / "e2e/config.yaml").exists():
        finished(folder, "checkpoint.state_every=2", "--resume")
        same_bytes(whole, folder)
        assert figures(folder) == rows
