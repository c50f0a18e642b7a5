"""Environments that misbehave when they are told to: by the completion's text, so that one member of a group may."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from tandem.envs import EnvSpec, Observation, StepResult

IMAGE = np.zeros((4, 4, 3), np.uint8)
FINE = StepResult(Observation((IMAGE,), "Fine."), 0.0, False, 0.0, True, {"pid": float(os.getpid())})

ABSURD: dict[str, Any] = {
    "nan reward": replace(FINE, reward=float("nan")),
    "text reward": replace(FINE, reward="1.0"),  # type: ignore[arg-type]
    "infinite task": replace(FINE, task_reward=float("inf")),
    "number ends": replace(FINE, terminated=1),  # type: ignore[arg-type]
    "text info": replace(FINE, info={"where": "here"}),  # type: ignore[dict-item]
    "list info": replace(FINE, info=[1.0]),  # type: ignore[arg-type]
    "float image": replace(FINE, observation=Observation((np.zeros((4, 4, 3), np.float32),), "")),  # type: ignore[arg-type]
    "flat image": replace(FINE, observation=Observation((np.zeros((4, 4), np.uint8),), "")),
    "huge image": replace(FINE, observation=Observation((np.zeros((1, 9000, 3), np.uint8),), "")),
    "empty image": replace(FINE, observation=Observation((np.zeros((0, 4, 3), np.uint8),), "")),
    "one image": replace(FINE, observation=Observation(IMAGE, "")),  # type: ignore[arg-type]
    "many images": replace(FINE, observation=Observation((IMAGE,) * 9, "")),
    "no text": replace(FINE, observation=Observation((), None)),  # type: ignore[arg-type]
    "much text": replace(FINE, observation=Observation((), "x" * 100_001)),
    "broken text": replace(FINE, observation=Observation((), "\ud800")),
    "nothing": None,
}


class Trouble:
    """Does what the completion says: hang, raise, exit, crash, print, start a child or a daemon, fork and let both go
    on, write to every socket there is, or answer with some of `ABSURD`. Seeds from 1000 on hang at their reset, from
    2000 on have an instruction that is no text."""

    def __init__(self, ends_at: int = 3) -> None:
        self.instruction: Any = "Go."
        self.ends_at = ends_at

    def reset(self, seed: int) -> Observation:
        self.turns = 0
        if seed >= 2000:
            self.instruction = 5
        elif seed >= 1000:
            hang()
        return replace(FINE.observation, text="")

    def step(self, completion_text: str) -> StepResult:
        self.turns += 1
        if completion_text == "hang":
            hang()
        if completion_text == "raise":
            raise ZeroDivisionError("physics " * 500)
        if completion_text == "speechless":
            raise Speechless
        if completion_text == "stop":
            raise StopIteration
        if completion_text == "exit":
            sys.exit(3)
        if completion_text == "crash":
            os._exit(7)
        if completion_text == "print":
            print("an environment that talks")
            os.write(1, b"and in C, too\n")
        if completion_text == "fork":
            os.fork()
        if completion_text == "babble":
            babble()
        if completion_text in ("child", "daemon"):
            child = subprocess.Popen(["sleep", "600"], start_new_session=completion_text == "daemon")
            return replace(FINE, info={"child": float(child.pid)})
        if completion_text in ABSURD:
            return ABSURD[completion_text]
        over = self.turns >= self.ends_at
        return replace(FINE, terminated=over, task_reward=float(over), reward=float(over))

    def close(self) -> None: ...


class Undescribed(Trouble):
    """Fails when it is asked what it is."""

    @staticmethod
    def spec(env_id: str) -> EnvSpec:
        raise ZeroDivisionError(env_id)


class Speechless(Exception):
    """Has no words."""

    def __str__(self) -> str:
        raise ValueError("no words")


def babble() -> None:
    """Into every socket of this process: its way to whoever started it is one."""
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                os.write(int(name), b"\xff\xfe\n")


def hang() -> None:
    """For ever, without holding the interpreter's lock."""
    threading.Event().wait()
