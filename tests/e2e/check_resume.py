"""Exact resume, the whole matrix: `make resume-check`.

A deterministic run is ended by kill -9 at every phase boundary and at random instants, and goes on each time. Each
adapter and each training state that it saves must have the bytes of a run that nothing happened to, and in the end
metrics.jsonl must say the same but for times. One run dies many times: it is resumed with the next death waiting.
"""

import json
import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tandem.runtime.faults import CONTROLLER, MANAGER
from tandem_controller.phases import phases_of
from tests.e2e.crashes import Run, figures, tensors

INSTANTS = int(os.environ.get("INSTANTS", "20"))
SEED = int(os.environ.get("SEED", "0")) or random.SystemRandom().randrange(1, 10**6)
ONLY = os.environ.get("ONLY", "")  # points that contain this
SHARED = ("run.deterministic=true", "checkpoint.keep=1000", "learner.world_size=1")


@dataclass(frozen=True)
class Kind:
    """A kind of run: what it is asked for, and the points that it never, or not surely, reaches."""

    verb: str
    steps: int
    settings: tuple[str, ...]
    passed_by: tuple[str, ...]
    instants: int = INSTANTS

    def start(self, folder: Path, *more: str, fault: str = "") -> Run:
        """Start or resume it."""
        used = ["--resume"] if (folder / "e2e/config.yaml").exists() else []
        settings = (*SHARED, f"run.steps={self.steps}", *self.settings)
        return Run(folder, *settings, *more, *used, fault=fault, verb=self.verb)


TRAIN = Kind(
    "train",
    40,
    (
        *("env.max_turns=13", "rollout.groups_per_step=3", "rollout.engine.max_model_len=256"),
        *("eval.fixed=2", "eval.every=3", "eval.styles=0", "eval.larger=0"),
    ),
    ("controller/model/", "manager/remove/"),
)
SFT = Kind(
    "sft",
    30,
    ("learner.trainable=full", "sft.batch=4", "sft.skill=0.8"),
    (
        *("controller/start/", "controller/generate", "controller/train", "controller/load", "controller/eval"),
        *("controller/adapter/", "manager/"),
    ),
    instants=INSTANTS // 4,
)


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


def deaths(kind: Kind, dice: random.Random, start_s: float, step_s: float) -> list[Death]:
    """All that is to be survived, in a random order."""
    points = [point for point in (*CONTROLLER, *MANAGER) if ONLY in point and not point.startswith(kind.passed_by)]
    found = []
    for index, point in enumerate(points):
        times = 1 if "/start/" in point or "/open/" in point or "/recover/" in point else dice.choice((1, 2, 3))
        found.append(Death(f"{point}@{times}", alone=index % 3 == 0, state_every=1 + index % 2))
    for index in range(kind.instants):
        early = index % 4 == 0
        after = dice.uniform(0, start_s if early else 4 * step_s)
        found.append(Death(after_s=after, early=early, state_every=1 + index % 2))
    dice.shuffle(found)
    return found


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


def finished(kind: Kind, folder: Path, *more: str) -> float:
    """Go on to the end; the seconds it took."""
    began = time.monotonic()
    run = kind.start(folder, *more)
    assert run.wait(3000) == 0, run.said()[-3000:]
    assert not run.left()
    return time.monotonic() - began


@pytest.mark.vllm
@pytest.mark.ray
@pytest.mark.timeout(6 * 3600)
@pytest.mark.parametrize("kind", [TRAIN, SFT], ids=lambda kind: kind.verb)
def test_every_death_is_survived_exactly(tmp_path: Path, kind: Kind) -> None:
    undisturbed, folder = tmp_path / "undisturbed", tmp_path / "killed"
    print(f"\nSEED={SEED}: {kind.steps} steps without interruption ...", flush=True)
    took = finished(kind, undisturbed, "checkpoint.state_every=1")
    whole, rows = tensors(undisturbed), figures(undisturbed)
    seconds = in_steps(undisturbed)
    print(f"{took:.0f} s, {seconds / kind.steps:.2f} s a step", flush=True)
    waiting = deaths(kind, random.Random(SEED), took - seconds, seconds / kind.steps)
    came, finishes, missed = 0, 0, list[Death]()
    for number, death in enumerate(waiting, 1):
        before = last_saved(folder)
        run = kind.start(folder, f"checkpoint.state_every={death.state_every}", fault=death.point)
        died = die(run, death)
        came += died
        missed += [death] if death.point and not died else []  # an instant may come after the run's end
        files = same_bytes(whole, folder)
        saw = f"v{before} -> v{last_saved(folder)}, {run.rows()} rows, {files} files the same"
        print(f"{number:3}/{len(waiting)} {death}: {'' if died else 'CAME TOO LATE, '}{saw}", flush=True)
        if last_saved(folder) >= kind.steps - 4 or number == len(waiting):
            finished(kind, folder, "checkpoint.state_every=2")
            same_bytes(whole, folder)
            assert figures(folder) == rows
            finishes += 1
            folder = tmp_path / f"killed-{finishes}"
    print(f"{came} deaths of {len(waiting)} came and were survived exactly, {finishes} runs to the end; SEED={SEED}")
    assert came and not missed


def in_steps(folder: Path) -> float:
    """Seconds that all steps of a run took."""
    lines = (folder / "e2e/metrics.jsonl").read_text().splitlines()
    return sum(value for line in lines for value in phases_of(json.loads(line)).values())


def last_saved(folder: Path) -> int:
    """The newest training state; 0 without one."""
    manifests = folder.glob("e2e/checkpoints/states/v*/manifest.json")
    return max((int(path.parent.name[1:]) for path in manifests), default=0)
