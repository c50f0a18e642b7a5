"""One self-contained HTML file: the page, and as much of the recording as the bound allows, compressed.

All figures go in, as far as they fit in half of it, the newest first; of the episodes themselves those that tell most:
evaluations of the first and the last version and groups whose members fared differently, spread over versions.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from tandem.storage.episode_index import Entry
from tandem.storage.episode_lines import TRAIN
from tandem.types import DataCorrupt, NotFound, UserError
from tandem_viewer import shown
from tandem_viewer.app import SCRIPTS, STYLE, page_file
from tandem_viewer.library import Library, Place

Found = tuple[int, Entry]
PAGE_BYTES = 200_000  # kept for the page itself
BASE64 = 4 / 3


def write_export(library: Library, path: Path, most_bytes: int, compare: int | None = None) -> list[str]:
    """Write the file; lines that say what is in it.

    Raises:
        UserError: it cannot be written.
    """
    entries = library.entries()
    room = (most_bytes - PAGE_BYTES) / BASE64
    rows, used = _rows(entries, room / 2)
    groups, images, episodes = _groups(library, entries[len(entries) - len(rows) :], room - used)
    counts = {
        "groups": len(entries),
        "rows": len(rows),
        "episodes": sum(len(entry.members) for _, entry in entries),
        "playable": episodes,
    }
    data = {
        "facts": {**library.facts(), "compare": compare, "export": counts},
        "rows": rows,
        "groups": groups,
        "images": images,
    }
    try:
        path.write_text(_page(data), encoding="utf-8")
    except OSError as problem:
        raise UserError(f"--export {path}: cannot be written ({problem.strerror})") from problem
    size = path.stat().st_size / 1e6
    told = [f"{path}: {size:.1f} MB; {episodes:,} of {counts['episodes']:,} episodes can be played in it"]
    if len(rows) < len(entries):
        told.append(f"figures of the newest {len(rows):,} of {len(entries):,} groups; --max-mb takes more")
    return told


def _rows(entries: Sequence[Found], room: float) -> tuple[list[Any], int]:
    """The newest rows that fit, compressed as they will be."""
    kept, used = list[list[Any]](), 0
    for start in range(len(entries), 0, -500):
        block = [shown.row(source, entry) for source, entry in entries[max(0, start - 500) : start]]
        used += len(_packed(block))
        if kept and used > room:
            break
        kept.append(block)
    return [row for block in reversed(kept) for row in block], used


def _groups(library: Library, entries: Sequence[Found], room: float) -> tuple[dict[str, Any], dict[str, str], int]:
    """Groups with their images, by where they stand, as far as they fit; and how many episodes that is."""
    groups, images, episodes = dict[str, Any](), dict[str, str](), 0
    for source, entry in preferred(entries):
        try:
            _, line = library.group(Place(source, entry.part, entry.at))
            places = {f"{source}/{entry.part}/{at}": Place(source, entry.part, at) for at in line.images.values()}
            new = {name: library.image(place)[1] for name, place in places.items() if name not in images}
        except (NotFound, DataCorrupt):
            continue
        group = shown.group(entry, line)
        size = len(_packed(group)) + sum(map(len, new.values()))
        if size > room:
            break
        room -= size
        groups[f"{source}/{entry.part}/{entry.at}"] = group
        images |= {name: base64.b64encode(png).decode() for name, png in new.items()}
        episodes += len(line.trajectories)
    return groups, images, episodes


def preferred(entries: Sequence[Found]) -> Iterator[Found]:
    """All that are still there, those that tell most first, in turns from the kinds that there are."""
    there = [found for found in entries if not found[1].gone]
    evaluated = [found for found in there if found[1].label.suite != TRAIN]
    ends = {edge(entry.label.version for _, entry in evaluated) for edge in (min, max)} if evaluated else set[int]()
    first = _spread([found for found in evaluated if found[1].label.version in ends])
    mixed = _spread([found for found in there if found[1].label.suite == TRAIN and found[1].mixed])
    seen = set[int]()
    for pair in (*zip_longest(first, mixed), *((found,) for found in _spread(there))):
        for found in pair:
            if found is not None and id(found[1]) not in seen:
                seen.add(id(found[1]))
                yield found


def _spread(entries: Sequence[Found]) -> list[Found]:
    """One of each version (and suite), then the next of each, and so on, by seed."""
    kinds: dict[tuple[str, str, int], list[Found]] = {}
    for found in sorted(entries, key=lambda found: found[1].seed):
        label = found[1].label
        kinds.setdefault((label.suite, found[1].env, label.version), []).append(found)
    return [found for turn in zip_longest(*kinds.values()) for found in turn if found is not None]


def _packed(content: Any) -> bytes:
    return zlib.compress(json.dumps(content, separators=(",", ":"), allow_nan=False).encode("utf-8", "replace"), 6)


def _page(data: dict[str, Any]) -> str:
    style, script = page_file(STYLE), "\n".join(map(page_file, SCRIPTS))
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    page = page_file("index.html")
    head = f'<meta http-equiv="content-security-policy" content="{policy}">\n<style>{style}</style>'
    body = f'<script type="application/octet-stream" id="data">{base64.b64encode(_packed(data)).decode()}</script>'
    page = page.replace('<link rel="stylesheet" href="style.css">', head)
    first = page.index("<script src=")
    return f"{page[:first]}{body}\n<script>{script}</script>\n</body>\n</html>\n"


def _digest(text: str) -> str:
    """As the browser checks it: of the text with its line ends as they are."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
