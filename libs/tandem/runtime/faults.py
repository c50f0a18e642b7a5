"""Fault injection: a process ends by SIGKILL at a named point, so that a test can prove what a crash there leaves.

TANDEM_FAULT=manager/publish/staged      at the first time that the point is reached
TANDEM_FAULT=manager/publish/staged@3    at the third
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from threading import Lock

from tandem.types import UserError

VARIABLE = "TANDEM_FAULT"
# Every point that code may reach, by who reaches it; a test walks each of these.
MANAGER = (
    "manager/receive/started",  # a shard's header is there
    "manager/receive/chunk",  # a chunk of it is written
    "manager/receive/checked",  # it is whole and sound, but not yet kept
    "manager/receive/kept",  # it is kept
    "manager/publish/started",
    "manager/publish/file",  # a file of the version is written and on disk
    "manager/publish/manifest",  # all of them are, under the temporary name
    "manager/publish/visible",  # the folder has its name; the pointer names the version before
    "manager/publish/pointed",
    "manager/replace/written",  # a small file, such as the pointer, is on disk under a temporary name
    "manager/remove/manifest",  # the manifest is gone, the files are there
    "manager/remove/done",
    "manager/prune/started",
    "manager/recover/started",
    "manager/recover/swept",  # unfinished folders are gone
    "manager/recover/pointed",
)
CONTROLLER = (
    "controller/start/restored",  # the learner is at its version, the engines are not
    "controller/start/loaded",  # the engines are; the run directory is as it was
    "controller/open/config",  # config.yaml is written, metrics.jsonl is as it was
    "controller/open/done",
    "controller/generate/started",
    "controller/generate/done",
    "controller/train/done",  # the learner alone has the new version
    "controller/adapter/exported",  # its shards are with the manager
    "controller/adapter/published",
    "controller/load/done",  # all engines serve it
    "controller/eval/done",
    "controller/log/done",  # its line is in metrics.jsonl
    "controller/snapshot/done",  # a state is in the learner's host memory, to be sent beside what comes next
    "controller/state/exported",
    "controller/state/published",
    "controller/model/exported",  # of `tandem sft` with all parameters
    "controller/model/published",
)
POINTS = frozenset((*MANAGER, *CONTROLLER))

_reached: Counter[str] = Counter()
_lock = Lock()


def reach(point: str) -> None:
    """End this process at once, as by kill -9, where TANDEM_FAULT names `point`; else nothing happens.

    Raises:
        ValueError: `point` is not one of `POINTS`.
        UserError: TANDEM_FAULT names no point.
    """
    if point not in POINTS:
        raise ValueError(f"{point!r} is no fault point; add it to tandem.runtime.faults")
    wanted = os.environ.get(VARIABLE)
    if not wanted:
        return
    name, count = _parse(wanted)
    if name != point:
        return
    with _lock:
        _reached[point] += 1
        due = _reached[point] == count
    if due:
        os.kill(os.getpid(), signal.SIGKILL)


def _parse(wanted: str) -> tuple[str, int]:
    name, at, times = wanted.partition("@")
    if name not in POINTS:
        raise UserError(f"{VARIABLE}={wanted}: no such fault point; there are: {', '.join(sorted(POINTS))}")
    if not at:
        return name, 1
    if not times.isdecimal() or int(times) < 1:
        raise UserError(f"{VARIABLE}={wanted}: after @ stands how many times, from 1")
    return name, int(times)
