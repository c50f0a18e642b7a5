"""What rank 0 has every rank do, and the answers, as bytes: a JSON line, then protobuf groups."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

from tandem import types
from tandem.rpc.codec import group_from_bytes, group_to_bytes
from tandem.types import AdapterRef, PublishKind, TandemError, TrajectoryGroup


@dataclass(frozen=True, slots=True)
class Train:
    """Make the next version of these groups."""

    groups: tuple[TrajectoryGroup, ...]


@dataclass(frozen=True, slots=True)
class Export:
    """Send your shard to the checkpoint manager at this address."""

    kind: PublishKind
    checkpoint_address: str


@dataclass(frozen=True, slots=True)
class Restore:
    """Take your shard from published folders."""

    adapter: AdapterRef
    state: AdapterRef | None


@dataclass(frozen=True, slots=True)
class Stop:
    """The run is over."""


Order: TypeAlias = Train | Export | Restore | Stop
Answer: TypeAlias = Mapping[str, Any]  # JSON


def encode_order(order: Order) -> bytes:
    """To bytes."""
    head: dict[str, Any] = {"order": type(order).__name__}
    body: list[bytes] = []
    if isinstance(order, Train):
        body = [group_to_bytes(group) for group in order.groups]
        head["sizes"] = [len(item) for item in body]
    elif not isinstance(order, Stop):
        head |= asdict(order)
    return json.dumps(head).encode() + b"\n" + b"".join(body)


def decode_order(data: bytes) -> Order:
    """From bytes."""
    line, _, body = data.partition(b"\n")
    head = json.loads(line)
    name = head.pop("order")
    if name == Train.__name__:
        groups, start = [], 0
        for size in head["sizes"]:
            groups.append(group_from_bytes(body[start : start + size]))
            start += size
        return Train(tuple(groups))
    if name == Export.__name__:
        return Export(PublishKind(head["kind"]), head["checkpoint_address"])
    if name == Restore.__name__:
        state = AdapterRef(**head["state"]) if head["state"] else None
        return Restore(AdapterRef(**head["adapter"]), state)
    return Stop()


def encode_answer(answer: Answer) -> bytes:
    """To bytes."""
    return json.dumps({"answer": answer}).encode()


def encode_problem(problem: Exception) -> bytes:
    """A rank's failure, to bytes."""
    return json.dumps({"kind": type(problem).__name__, "message": str(problem)}).encode()


def decode_answer(data: bytes, rank: int) -> Answer:
    """From bytes. Raises what the rank raised; what is not Tandem's own comes as TandemError."""
    content = json.loads(data)
    if "answer" in content:
        return content["answer"]
    kind = getattr(types, content["kind"], None)
    if isinstance(kind, type) and issubclass(kind, TandemError):
        raise kind(content["message"])
    raise TandemError(f"learner rank {rank}: {content['kind']}: {content['message']}")
