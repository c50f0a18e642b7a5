"""Recorded episodes: a folder that people, supervised fine-tuning and the viewer read.

<folder>/index.jsonl                  what there is, a line a group: see `episode_index`
<folder>/[<part>/]episodes.jsonl      one trajectory group a line: see `episode_lines`
<folder>/[<part>/]images.pack         each distinct image once: see `episode_pack`

All three are only ever appended to: images, then the line that names them, then the index. So a crash leaves at worst
something that nobody names, and a last line cut short, which is taken off before the next one is written. A run's
recording has parts, a folder each: `eval`, and one a training step, which is removed as a whole to make room.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tandem.storage.episode_index import (
    INDEX,
    Entry,
    anew_line,
    back_line,
    entry_line,
    entry_of,
    gone_line,
    read_index,
)
from tandem.storage.episode_lines import (
    LINE,
    TRAIN,
    Beside,
    GroupLine,
    Label,
    check_line,
    dump_line,
    group_line,
    group_of,
)
from tandem.storage.episode_pack import PACK, PackWriter, read_image
from tandem.storage.parse import parse_json
from tandem.types import DataCorrupt, NotFound, TrajectoryGroup, UserError

EPISODES, EVAL = "episodes.jsonl", "eval"
_PLAIN = Beside()


class EpisodeWriter:
    """The only writer of a folder, which is made where it is missing.

    Raises, as all its methods do:
        UserError: the folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._packs: dict[str, PackWriter] = {}
        with _writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            _take_off_cut_line(folder / INDEX)
        self.sizes = {path.name: _size(path) for path in folder.glob(f"{TRAIN}-*")}  # bytes, by part of training

    def write(self, groups: Iterable[TrajectoryGroup], beside: Beside = _PLAIN, part: str = "") -> int:
        """Append groups; returns how many."""
        home = self.folder / part
        count = 0
        with _writing(self.folder):
            home.mkdir(exist_ok=True)
            pack = self._pack(part)  # one that cannot be written to is looked at anew the next time
            with (
                open(home / PACK, "ab") as images,
                open(home / EPISODES, "ab") as lines,
                open(self.folder / INDEX, "ab") as index,
            ):
                for group in groups:
                    places = {name: pack.add(images, name, png) for name, png in sorted(group.images.items())}
                    line = group_line(group, beside, places, time.time())
                    data, at = dump_line(line), lines.seek(0, os.SEEK_END)
                    for file, content in ((images, b""), (lines, data)):
                        file.write(content)
                        file.flush()
                    index.write(entry_line(entry_of(line, part, at, len(data))))
                    index.flush()
                    count += 1
            self._packs[part] = pack
        if part.startswith(TRAIN):
            self.sizes[part] = _size(home)
        return count

    def anew(self, label: Label, env: str) -> None:
        """What was recorded of this label counts no more: it is about to be made again."""
        self._append(anew_line(label, env))

    def go_back(self, version: int) -> None:
        """The run goes on from this version: what it recorded beyond will be made again, or never was."""
        self._append(back_line(version))
        for part in [part for part in self.sizes if int(part.removeprefix(f"{TRAIN}-")) >= version]:
            self._remove(part)

    def make_room(self, most_bytes: float) -> None:
        """Remove training steps until the rest takes at most so much: every second one of the older half first, so
        that what is left still shows the whole way. The newest stays."""
        while sum(self.sizes.values()) > most_bytes and len(self.sizes) > 1:
            older = sorted(self.sizes)[: max(1, len(self.sizes) // 2)]
            for part in older[1::2] or older:
                self._append(gone_line(part))
                self._remove(part)

    def _remove(self, part: str) -> None:
        with _writing(self.folder):
            shutil.rmtree(self.folder / part)
        self.sizes.pop(part)
        self._packs.pop(part, None)

    def _append(self, line: bytes) -> None:
        with _writing(self.folder), open(self.folder / INDEX, "ab") as file:
            file.write(line)

    def _pack(self, part: str) -> PackWriter:
        if (known := self._packs.pop(part, None)) is not None:
            return known
        self._packs = {name: pack for name, pack in self._packs.items() if not name.startswith(TRAIN)}
        _take_off_cut_line(self.folder / part / EPISODES)
        return PackWriter(self.folder / part / PACK)


def train_part(version: int) -> str:
    """The part of what version `version` learned from."""
    return f"{TRAIN}-{version:08d}"


def write_groups(folder: Path, groups: Iterable[TrajectoryGroup], beside: Beside = _PLAIN) -> int:
    """Append groups to a folder, made where it is missing; returns how many. Raises as `EpisodeWriter`."""
    return EpisodeWriter(folder).write(groups, beside)


def read_groups(folder: Path, wanted: Callable[[Entry], bool] = lambda entry: True) -> Iterator[TrajectoryGroup]:
    """The groups of a folder in the order written, each checked before it is handed out; without those that counted no
    more or were removed.

    Raises:
        NotFound: there is no index.jsonl.
        DataCorrupt: a line is no group, or has a field unknown here; an image is missing or damaged. The message names
            the file and the byte.
    """
    try:
        entries = read_index(folder)
    except OSError as problem:
        raise NotFound(
            f"{folder / INDEX}: cannot be read ({problem.strerror}); name a folder of recorded episodes"
        ) from problem
    for entry in entries:
        if wanted(entry) and not entry.gone:
            line = read_line(folder, entry)
            yield group_of(line, _images(folder / entry.part / PACK, line.images))


def read_line(folder: Path, entry: Entry) -> GroupLine:
    """A group without its images, checked. Raises DataCorrupt as `read_groups`."""
    path = folder / entry.part / EPISODES
    what = f"{path} at byte {entry.at}"
    try:
        with open(path, "rb") as file:
            file.seek(entry.at)
            data = file.read(entry.size)
    except OSError as problem:
        raise DataCorrupt(f"{what}: cannot be read ({problem.strerror}), but {INDEX} names it") from problem
    if not data.endswith(b"\n"):
        raise DataCorrupt(f"{what}: cut short, but {INDEX} names it")
    line = check_line(parse_json(LINE, data, what), what)
    if (line.group_id, line.seed, line.label) != (entry.id, entry.seed, entry.label):
        raise DataCorrupt(f"{what}: holds another group than {INDEX} says")
    return line


def _images(pack: Path, places: Mapping[str, int]) -> Mapping[str, bytes]:
    found: dict[str, bytes] = {}
    for name, at in places.items():
        digest, found[name] = read_image(pack, at)
        if digest != name:
            raise DataCorrupt(f"{pack}: has another image at byte {at} than {name[:12]}...")
    return found


def _take_off_cut_line(path: Path) -> None:
    """Shorten a file of lines to its last whole one."""
    path.touch()
    with open(path, "r+b") as file:
        end = file.seek(0, os.SEEK_END)
        block = 2**16
        while end:
            start = max(0, end - block)
            file.seek(start)
            found = file.read(end - start).rfind(b"\n")
            if found >= 0:
                end = start + found + 1
                break
            end = start
        file.truncate(end)


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir() if path.is_file())


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        raise UserError(f"episodes {folder}: cannot be written ({problem.strerror or problem})") from problem
