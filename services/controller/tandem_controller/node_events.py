"""What Kubernetes says of its nodes, as values: lists, watch events, and which nodes are unwell."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tandem.types import TandemError

WELL = "Schedulable"
LONGEST_LINE = 16 * 2**20  # bytes of one event: a node's description is some 50 kB


class Gone(TandemError):
    """The version to watch from is too old (410): list again."""


class Garbled(TandemError):
    """No answer of a Kubernetes API."""


@dataclass(frozen=True, slots=True)
class Event:
    """A node has this label now, `""` for none; None where the node is no more. A bookmark has no node. `version` is
    where a watch goes on after it."""

    version: str
    node: str = ""
    label: str | None = None


@dataclass(frozen=True, slots=True)
class Listed:
    """A page of the list: labels by node; `more` asks for the next page, `""` at the end."""

    version: str
    labels: Mapping[str, str]
    more: str = ""


def read_list(body: bytes, label: str) -> Listed:
    """Of an answer's body. Raises Garbled."""
    answer = _object(body)
    about, items = answer.get("metadata"), answer.get("items")
    if not isinstance(about, dict) or not isinstance(items, list):
        raise Garbled("the API's list of nodes has no metadata or no items")
    labels = dict(_node(item, label) for item in items)
    return Listed(str(about.get("resourceVersion", "")), labels, str(about.get("continue") or ""))


def read_event(line: bytes, label: str) -> Event:
    """Of a line of a watch. Raises Gone, and Garbled also for another error that the API sends in the stream."""
    event = _object(line)
    kind, item = event.get("type"), event.get("object")
    if not isinstance(item, dict):
        raise Garbled("an event of the API has no object")
    if kind == "ERROR":
        raise (Gone if item.get("code") == 410 else Garbled)(f"the API ended the watch: {item.get('message', item)}")
    about = item.get("metadata")
    version = str(about.get("resourceVersion", "")) if isinstance(about, dict) else ""
    if kind == "BOOKMARK":
        return Event(version)
    node, value = _node(item, label)
    return Event(version, node, None if kind == "DELETED" else value)


async def lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The lines of a stream, whatever its pieces; one cut short at the end is none.

    Raises:
        Garbled: a line has no end.
    """
    rest = b""
    async for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            if line.strip():
                yield line
        if len(rest) > LONGEST_LINE:
            raise Garbled(f"an event of the API is longer than {LONGEST_LINE} bytes")


@dataclass(frozen=True, slots=True)
class Change:
    """A node's health is another than it was."""

    node: str
    old: str
    new: str

    def __str__(self) -> str:
        return f"node {self.node} is {self.new}" + (f", it was {self.old}" if self.old != WELL else "")


@dataclass(slots=True)
class Health:
    """Which nodes are unwell, and how; all others are well."""

    unwell: dict[str, str] = field(default_factory=dict)

    def listed(self, labels: Mapping[str, str]) -> tuple[Change, ...]:
        """All nodes there are; those not among them are not worth a word."""
        for node in self.unwell.keys() - labels.keys():
            del self.unwell[node]
        return tuple(change for node, label in labels.items() if (change := self.seen(node, label)))

    def seen(self, node: str, label: str | None) -> Change | None:
        """One node. No label is a healthy node's; one that is no more is not worth a word."""
        if label is None:
            self.unwell.pop(node, None)
            return None
        old, new = self.unwell.get(node, WELL), label or WELL
        if new == WELL:
            self.unwell.pop(node, None)
        else:
            self.unwell[node] = new
        return Change(node, old, new) if new != old else None


def _object(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as problem:
        raise Garbled(f"the API's answer is no JSON ({problem})") from problem
    if not isinstance(found, dict):
        raise Garbled("the API's answer is no JSON object")
    return found


def _node(item: Any, label: str) -> tuple[str, str]:
    about = item.get("metadata") if isinstance(item, dict) else None
    if not isinstance(about, dict) or not isinstance(name := about.get("name"), str) or not name:
        raise Garbled("a node of the API's answer has no name")
    labels = about.get("labels")
    value = labels.get(label) if isinstance(labels, dict) else None
    return name, value if isinstance(value, str) else ""
