"""Recorded episodes: a folder that people, supervised fine-tuning and viewers read.

<folder>/episodes.jsonl          one trajectory group a line, its images by sha256
<folder>/images/<sha256>.png     each distinct image once

A line is the group's fields as `tandem.types` names them. Images are written before the line that names them, so a
crash leaves at worst an image too many or a last line cut short, which is refused by name.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from pydantic import ConfigDict, Field, TypeAdapter
from pydantic.dataclasses import dataclass

from tandem.storage.parse import parse_json
from tandem.types import DataCorrupt, NotFound, Trajectory, TrajectoryGroup, UserError

EPISODES, IMAGES = "episodes.jsonl", "images"


# A number that is not finite is written as a string: the file stays JSON, and what was recorded comes back.
@dataclass(frozen=True, slots=True, config=ConfigDict(extra="forbid", ser_json_inf_nan="strings"))
class _Line:
    group_id: str
    env: str
    seed: Annotated[int, Field(ge=0, lt=2**63)]
    policy_version: Annotated[int, Field(ge=0, lt=2**63)]
    trajectories: tuple[Trajectory, ...]
    images: tuple[str, ...]
    seconds: float


_LINE = TypeAdapter(_Line)


def write_groups(folder: Path, groups: Iterable[TrajectoryGroup]) -> int:
    """Append groups to a folder, made where it is missing; returns how many.

    Raises:
        UserError: the folder cannot be written.
        DataCorrupt: its last line is cut short, and what is appended would be lost with it.
    """
    count = 0
    try:
        (folder / IMAGES).mkdir(parents=True, exist_ok=True)
        with open(folder / EPISODES, "ab") as file:
            _check_end(folder / EPISODES)
            for group in groups:
                for name, png in group.images.items():
                    _write_image(folder / IMAGES / f"{name}.png", png)
                file.write(_LINE.dump_json(_line(group)) + b"\n")
                file.flush()
                count += 1
    except OSError as problem:
        raise UserError(f"episodes {folder}: cannot be written ({problem.strerror or problem})") from problem
    return count


def read_groups(folder: Path) -> Iterator[TrajectoryGroup]:
    """The groups of a folder in the order written, each checked before it is handed out.

    Raises:
        NotFound: there is no episodes.jsonl.
        DataCorrupt: a line is cut short, no group, or has a field unknown here; an image is missing or is not its
            sha256. The message names file and line.
    """
    path = folder / EPISODES
    try:
        file = open(path, "rb")  # noqa: SIM115 - closed below
    except OSError as problem:
        raise NotFound(f"{path}: cannot be read ({problem.strerror}); name a folder of recorded episodes") from problem
    with file:
        for number, line in enumerate(file, start=1):
            what = f"{path} line {number}"
            if not line.endswith(b"\n"):
                raise DataCorrupt(f"{what}: cut short; remove it to use the lines before")
            yield _group(parse_json(_LINE, line, what), folder / IMAGES, what)


def _line(group: TrajectoryGroup) -> _Line:
    return _Line(
        group.group_id,
        group.env,
        group.seed,
        group.policy_version,
        tuple(replace(trajectory, metrics=dict(trajectory.metrics)) for trajectory in group.trajectories),
        tuple(sorted(group.images)),
        group.seconds,
    )


def _group(line: _Line, images: Path, what: str) -> TrajectoryGroup:
    for trajectory in line.trajectories:
        for index, turn in enumerate(trajectory.turns):
            where = f"{what}: member {trajectory.member} turn {index}"
            if missing := set(turn.images) - set(line.images):
                raise DataCorrupt(f"{where}: image {min(missing)} is not among the group's")
            if odd := [token for token in turn.prompt_ids + turn.completion_ids if not 0 <= token < 2**31]:
                raise DataCorrupt(f"{where}: {odd[0]} is no token id")
            ids, logprobs = len(turn.completion_ids), len(turn.rollout_logprobs)
            if ids != logprobs:
                raise DataCorrupt(f"{where}: {ids} completion ids but {logprobs} logprobs")
    return TrajectoryGroup(
        group_id=line.group_id,
        env=line.env,
        seed=line.seed,
        policy_version=line.policy_version,
        trajectories=line.trajectories,
        images=_read_images(images, line.images, what),
        seconds=line.seconds,
    )


def _read_images(folder: Path, names: Iterable[str], what: str) -> Mapping[str, bytes]:
    found: dict[str, bytes] = {}
    for name in names:
        path = folder / f"{name}.png"
        try:
            found[name] = path.read_bytes()
        except OSError as problem:
            raise DataCorrupt(f"{path}: cannot be read ({problem.strerror}), but {what} names it") from problem
        if (digest := hashlib.sha256(found[name]).hexdigest()) != name:
            raise DataCorrupt(f"{path}: its sha256 is {digest[:12]}..., not its name")
    return found


def _write_image(path: Path, png: bytes) -> None:
    if path.exists():
        return
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_bytes(png)
    partial.replace(path)


def _check_end(path: Path) -> None:
    with open(path, "rb") as file:
        if file.seek(0, os.SEEK_END) and (file.seek(-1, os.SEEK_END), file.read(1))[1] != b"\n":
            raise DataCorrupt(f"{path}: its last line is cut short; remove that line, then write again")
