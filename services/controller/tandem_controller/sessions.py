"""The times that a run was at work: sessions.jsonl in its folder has a line where each begins and one where it ends.

A session that was killed has no end: then the next one, or nothing, follows its beginning.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tandem.obs import get_logger
from tandem.types import Problem, Recovery
from tandem_controller.telling import one_line

log = get_logger(__name__)
SESSIONS_FILE = "sessions.jsonl"
FINISHED, STOPPED, FAILED = "finished", "stopped", "failed"


@dataclass(frozen=True, slots=True)
class Began:
    """A beginning. `version` is the one it went on from, `gpus` how many it holds at most, `changed` what differs from
    the recipe, `command` can be given to a shell in `folder`."""

    at: float
    version: int
    command: str
    folder: str
    code: str
    gpus: int
    machine: Mapping[str, str]
    changed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Ended:
    """An end: how (finished, stopped or failed) and why, the version reached, seconds by phase, what died and what went
    wrong last."""

    at: float
    version: int
    how: str
    why: str
    seconds: Mapping[str, float]
    deaths: tuple[Mapping[str, Any], ...] = ()
    problems: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Session:
    """One of them; `ended` is None where it runs, or was killed."""

    began: Began
    ended: Ended | None


@dataclass(slots=True)
class Open:
    """The session that runs: whoever runs it notes what its end will say."""

    version: int
    how: str = FAILED
    seconds: Mapping[str, float] = field(default_factory=dict)
    recoveries: tuple[Recovery, ...] = ()
    problems: tuple[Problem, ...] = ()


@contextmanager
def session(folder: Path, began: Began) -> Iterator[Open]:
    """Keep a session's beginning and, however the body ends, its end."""
    _append(folder, began)
    opened, why = Open(began.version), ""
    try:
        yield opened
    except BaseException as problem:
        by_hand = not isinstance(problem, Exception)
        opened.how = STOPPED if by_hand else FAILED
        why = "ended at once, by hand" if by_hand else one_line(f"{type(problem).__name__}: {problem}")
        raise
    finally:
        deaths = tuple(map(_death, opened.recoveries))
        problems = tuple(asdict(problem) for problem in opened.problems)
        _append(folder, Ended(time.time(), opened.version, opened.how, why, opened.seconds, deaths, problems))


def read_sessions(folder: Path) -> tuple[Session, ...]:
    """Oldest first. Lines that are none of ours, such as one cut short by a crash, are passed over."""
    found = list[Session]()
    try:
        lines = (folder / SESSIONS_FILE).read_text(errors="replace").splitlines()
    except OSError:
        return ()
    for line in lines:
        try:
            event = json.loads(line)
            if "ended" in event and found:
                found[-1] = Session(found[-1].began, Ended(**event["ended"]))
            elif "began" in event:
                found.append(Session(Began(**event["began"]), None))
        except (ValueError, TypeError):
            continue
    return tuple(found)


def held_s(sessions: Iterable[Session], last_seen: float) -> list[float]:
    """How long each was at work; one that was killed, until `last_seen` (Unix seconds) or the next one's beginning."""
    listed = list(sessions)
    following = [*(item.began.at for item in listed[1:]), float("inf")][: len(listed)]
    return [
        max(0.0, (item.ended.at if item.ended else min(last_seen, after)) - item.began.at)
        for item, after in zip(listed, following, strict=True)
    ]


def _append(folder: Path, event: Began | Ended) -> None:
    """No run ends for want of this."""
    line = json.dumps({type(event).__name__.lower(): asdict(event)}) + "\n"
    try:
        with (folder / SESSIONS_FILE).open("a") as file:
            file.write(line)
    except OSError as problem:
        log.warning("%s: cannot be written: %s", folder / SESSIONS_FILE, problem.strerror)


def _death(recovery: Recovery) -> dict[str, Any]:
    member = recovery.death.member
    return {
        "at": recovery.at,
        "who": str(member.identity),
        "node": member.node,
        "why": one_line(recovery.death.why),
        "action": one_line(recovery.action),
        "seconds": recovery.seconds,
    }
