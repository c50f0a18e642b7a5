"""The contents of a folder of recorded episodes, by which it is listed, filtered and counted without reading them.

    index.jsonl    {"group": {...}}    a group: where its line is, its label, and in short what became of each member
                   {"anew": {...}}     what was recorded of this label (and environment) before counts no more
                   {"back": 12}        the run goes on from this version: what it recorded beyond counts no more
                   {"gone": "train-00000003"}   this part is removed to make room: its figures stay

A group's line is written after its episodes, so whatever is in the index is there. Lines that a crash cut short are
passed over and counted.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked

from tandem.storage.episode_lines import TRAIN, GroupLine, Label, TrajectoryLine
from tandem.types import FinishReason, StopReason

INDEX = "index.jsonl"
SHOWN = 60  # characters of an answer that the index keeps
_AT_ONCE = 4 * 2**20
_PART = r"^(?:[a-z0-9][a-z0-9-]{0,80})?$"


class Member(NamedTuple):
    """An episode in short. `first` and `unread` are the beginnings of its first answer, and of the first in which no
    action could be read; `frame` is where the last picture it saw stands in the part's pack, -1 without one."""

    member: int
    stop: StopReason
    task_reward: float
    total: float
    turns: int
    unparsed: int
    tokens: int
    cut: int  # turns whose answer ran into its length limit
    advantage: float | None
    first: str
    unread: str
    frame: int

    @property
    def solved(self) -> bool:
        return self.task_reward >= 1.0


@checked(frozen=True, slots=True, config=ConfigDict(extra="ignore", ser_json_inf_nan="strings"))
class Entry:
    """A group in short. `part` is the folder below the recording that has it, `at` and `size` its line's bytes.
    `gone`: the episodes themselves were removed."""

    part: Annotated[str, Field(pattern=_PART)]
    at: Annotated[int, Field(ge=0)]
    size: Annotated[int, Field(ge=0)]
    id: str
    env: str
    seed: int
    label: Label
    time: float
    members: tuple[Member, ...]
    gone: bool = False

    @property
    def mixed(self) -> bool:
        """True where some members solved the task and some did not."""
        return len({member.solved for member in self.members}) > 1


@dataclass(frozen=True, slots=True)
class _Anew:
    label: Label
    env: str


_ENTRY, _MEMBERS, _ANEW = TypeAdapter(Entry), TypeAdapter(tuple[Member, ...]), TypeAdapter(_Anew)


def entry_of(line: GroupLine, part: str, at: int, size: int) -> Entry:
    """The entry of a group whose line is written there."""
    members = tuple(_member(trajectory, line) for trajectory in line.trajectories)
    return Entry(part, at, size, line.group_id, line.env, line.seed, line.label, line.time, members)


def entry_line(entry: Entry) -> bytes:
    """A group's line of the index."""
    return b'{"group":' + _ENTRY.dump_json(entry, exclude_defaults=True) + b"}\n"


def anew_line(label: Label, env: str) -> bytes:
    """What was recorded of this label before counts no more."""
    return _json({"anew": {"label": asdict(label), "env": env}})


def back_line(version: int) -> bytes:
    """The run goes on from this version."""
    return _json({"back": version})


def gone_line(part: str) -> bytes:
    """This part is removed."""
    return _json({"gone": part})


class Index:
    """What counts in a folder's index, read as it grows. `edition` changes whenever something that was there counts
    no more or is otherwise than it was; else `entries` only grows. `damaged`: lines passed over."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / INDEX
        self.entries: list[Entry] = []
        self.edition = 0
        self.damaged = 0
        self.bytes_read = 0
        self._at = 0
        self._file = (0, 0)
        self._texts: dict[str, str] = {}

    def poll(self) -> bool:
        """Read what has been added; whether anything was. A file that is shorter than it was, or another, is read anew.

        Raises:
            OSError: it cannot be read, or is not there.
        """
        with open(self.path, "rb") as file:
            found = os.fstat(file.fileno())
            if (found.st_dev, found.st_ino) != self._file or found.st_size < self._at:
                self.entries, self._at, self.damaged = [], 0, 0
                self._file = (found.st_dev, found.st_ino)
                self.edition += 1
            began = self._at
            for line in _whole_lines(file, self._at):
                self._at += len(line)
                self._take(line)
        self.bytes_read += self._at - began
        return self._at > began

    def _take(self, line: bytes) -> None:
        if line.startswith(b'{"group":'):
            try:
                self.entries.append(self._interned(_ENTRY.validate_json(line.rstrip()[9:-1])))
            except ValidationError:
                self.damaged += 1
            return
        try:
            self._correct(json.loads(line))
        except (ValueError, TypeError, KeyError):
            self.damaged += 1

    def _correct(self, said: dict) -> None:
        if "anew" in said:
            anew = _ANEW.validate_python(said["anew"])
            kept = [e for e in self.entries if (e.label, e.env) != (anew.label, anew.env)]
        elif "back" in said:
            version = int(said["back"])
            kept = [e for e in self.entries if e.label.version < version + (e.label.suite != TRAIN)]
        else:
            kept = [replace(e, gone=True) if e.part == said["gone"] else e for e in self.entries]
        if kept != self.entries:
            self.entries = kept
            self.edition += 1

    def _interned(self, entry: Entry) -> Entry:
        """Answers are few, episodes many: one text each."""
        keep = self._texts.setdefault
        if len(self._texts) > 100_000:
            self._texts.clear()
        members = tuple(
            m._replace(first=keep(m.first, m.first), unread=keep(m.unread, m.unread)) for m in entry.members
        )
        return replace(entry, members=members, env=keep(entry.env, entry.env), part=keep(entry.part, entry.part))


def read_index(folder: Path) -> list[Entry]:
    """What counts in a folder's index, in the order written. Raises OSError where it cannot be read."""
    index = Index(folder)
    index.poll()
    return index.entries


def is_part(name: str) -> bool:
    """True for what may be the name of a part: it leads nowhere else."""
    return re.fullmatch(_PART, name) is not None


def _whole_lines(file, at: int) -> Iterator[bytes]:  # type: ignore[no-untyped-def]
    file.seek(at)
    rest = b""
    while block := file.read(_AT_ONCE):
        *lines, rest = (rest + block).split(b"\n")
        for line in lines:
            yield line + b"\n"


def _member(trajectory: TrajectoryLine, line: GroupLine) -> Member:
    turns = trajectory.turns
    unread = [turn.text for turn in turns if not turn.parsed]
    seen = next((turn.images[-1] for turn in reversed(turns) if turn.images), None)
    return Member(
        member=trajectory.member,
        stop=trajectory.stop_reason,
        task_reward=trajectory.task_reward,
        total=float(sum(turn.reward for turn in turns)),
        turns=len(turns),
        unparsed=len(unread),
        tokens=sum(len(turn.completion_ids) for turn in turns),
        cut=sum(turn.finish is FinishReason.LENGTH for turn in turns),
        advantage=trajectory.advantage,
        first=turns[0].text.strip()[:SHOWN] if turns else "",
        unread=unread[0].strip()[:SHOWN] if unread else "",
        frame=line.images[seen] if seen else -1,
    )


def _json(content: object) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode() + b"\n"
