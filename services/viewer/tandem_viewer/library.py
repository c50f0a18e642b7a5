"""What there is to see below a folder: a run's, a recording's, or one with several recordings.

Everything is asked for by a place that the index names: no path ever comes from a request. The index is read as it
grows; a group's line and images are read when somebody looks at them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from threading import Lock
from typing import Any

from tandem.storage.episode_index import INDEX, Entry, Index
from tandem.storage.episode_lines import GroupLine
from tandem.storage.episode_pack import PACK, read_image
from tandem.storage.episodes import read_line
from tandem.types import NotFound, UserError

RECORDED = "episodes"  # of a run directory
AT_ONCE = 1000  # groups in one answer


@dataclass(frozen=True, slots=True)
class Place:
    """Where a group stands: which recording, which part of it, at which byte."""

    source: int
    part: str
    at: int


@dataclass(frozen=True, slots=True)
class Page:
    """Groups `start` .. of `total`. `edition` changes when those before `start` are no longer what they were."""

    edition: str
    start: int
    total: int
    entries: tuple[tuple[int, Entry], ...]  # with the number of their recording


class Library:
    """See the module. Safe to use from several threads."""

    def __init__(self, folder: Path) -> None:
        """Raises UserError where there is nothing recorded."""
        self.folder = folder
        self.sources = _sources(folder)
        self._indexes = [Index(source) for source in self.sources]
        self._order: list[tuple[int, Entry]] = []
        self._known: dict[Place, Entry] = {}
        self._taken: list[tuple[int, int]] = [(-1, 0)] * len(self.sources)  # edition and length by source
        self._parts: set[tuple[int, str]] = set()
        self._born, self._edition = token_hex(4), 0  # a page that another process served starts anew
        self._lock = Lock()
        self.page("", 0)

    @property
    def bytes_read(self) -> int:
        """Of indexes, so far."""
        return sum(index.bytes_read for index in self._indexes)

    def page(self, edition: str, start: int, count: int = AT_ONCE) -> Page:
        """The groups from `start` on as far as they fit; from 0 where `edition` is not the one there is now."""
        with self._lock:
            self._poll()
            now = f"{self._born}-{self._edition}"
            start = min(max(start, 0), len(self._order)) if edition == now else 0
            return Page(now, start, len(self._order), tuple(self._order[start : start + max(count, 0)]))

    def entries(self) -> Sequence[tuple[int, Entry]]:
        """All groups there are now, with the number of their recording."""
        with self._lock:
            self._poll()
            return tuple(self._order)

    def group(self, place: Place) -> tuple[Entry, GroupLine]:
        """A group. Raises NotFound where there is none, or no more; DataCorrupt where it is damaged."""
        entry = self._known.get(place)
        if entry is None:
            raise NotFound("no such group: what was recorded there has been taken back")
        if entry.gone:
            raise NotFound("these episodes were removed to make room (record.max_gib); their figures stay")
        return entry, read_line(self.sources[place.source], entry)

    def image(self, place: Place) -> tuple[str, bytes]:
        """An image and its sha256, by where it stands in its part's pack. Raises as `group`."""
        if (place.source, place.part) not in self._parts:
            raise NotFound("no such recording")
        return read_image(self.sources[place.source] / place.part / PACK, place.at)

    def facts(self) -> dict[str, Any]:
        """What is known of the run beside its episodes."""
        about = _json_of(self.folder / "run.json")
        report = _json_of(self.folder / "report.json")
        return {
            "name": self.folder.resolve().name,
            "sources": [source.name for source in self.sources] if len(self.sources) > 1 else [],
            "run_id": str(about.get("run_id", "")),
            "code": str(about.get("code", "")),
            "done": bool(report),
            "damaged": sum(index.damaged for index in self._indexes),
        }

    def _poll(self) -> None:
        for number, index in enumerate(self._indexes):
            try:
                index.poll()
            except OSError:
                continue  # it is not there for the moment, or any more: what is known stays
            edition, length = self._taken[number]
            if index.edition != edition and edition >= 0:
                self._order = [(source, entry) for source, entry in self._order if source != number]
                self._known = {place: entry for place, entry in self._known.items() if place.source != number}
                self._edition += 1
                length = 0
            for entry in index.entries[length:]:
                self._order.append((number, entry))
                self._parts.add((number, entry.part))
                self._known[Place(number, entry.part, entry.at)] = entry
            self._taken[number] = (index.edition, len(index.entries))


def _sources(folder: Path) -> list[Path]:
    for candidate in (folder, folder / RECORDED):
        if (candidate / INDEX).is_file():
            return [candidate]
    found = sorted(path.parent for path in folder.glob(f"*/{INDEX}"))
    if found:
        return found
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; name a run's, or one that `tandem eval --save` made")
    raise UserError(
        f"{folder}: holds no recorded episodes; name a run's folder, or one that `tandem eval --save` made "
        "(a run records as `record` in its recipe says, from its first step or evaluation on)"
    )


def _json_of(path: Path) -> dict[str, Any]:
    """A small JSON object; empty where there is none."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
