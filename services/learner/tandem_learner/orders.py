"""What rank 0 has every rank do, and the answers, as bytes: a JSON line, then protobuf groups."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

from tandem import types
from tandem.rpc.codec import group_from_bytes, group_to_bytes
from tandem.types import AdapterRef, PublishKind, ShardRef, TandemError, TrajectoryGroup


@dataclass(frozen=True, slots=True)
class Train:
    """Make the next version of these groups."""

    groups: tuple[TrajectoryGroup, ...]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Copy your shard of the version you are at to host memory."""

    kind: PublishKind


@dataclass(frozen=True, slots=True)
class Destinations:
    """Where a shard goes, host:port each: to the checkpoint manager, and to rollout replicas at the same time."""

    checkpoint_address: str
    replica_addresses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Export:
    """Begin to send the shard you copied; what becomes of it is reported under `ticket`."""

    kind: PublishKind
    version: int
    to: Destinations
    ticket: int


@dataclass(frozen=True, slots=True)
class Sent:
    """A shard that the checkpoint manager has; and by address why a replica did not get it."""

    shard: ShardRef
    missed: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Restore:
    """Take your shard from published folders."""

    adapter: AdapterRef
    state: AdapterRef | None


@dataclass(frozen=True, slots=True)
class Stop:
    """The run is over."""


Order: TypeAlias = Train | Snapshot | Export | Restore | Stop
Answer: TypeAlias = Mapping[str, Any]  # JSON
NOWHERE: Mapping[str, str] = {}


def encode_order(order: Order, trace: Mapping[str, str] = NOWHERE) -> bytes:
    """To bytes, with the trace that it is a part of."""
    head: dict[str, Any] = {"order": type(order).__name__, "trace": dict(trace)}
    body: list[bytes] = []
    if isinstance(order, Train):
        body = [group_to_bytes(group) for group in order.groups]
        head["sizes"] = [len(item) for item in body]
    elif not isinstance(order, Stop):
        head |= asdict(order)
    return json.dumps(head).encode() + b"\n" + b"".join(body)


def trace_of(data: bytes) -> Mapping[str, str]:
    """The trace that an order is a part of."""
    return json.loads(data.partition(b"\n")[0])["trace"]


def decode_order(data: bytes) -> Order:
    """From bytes."""
    line, _, body = data.partition(b"\n")
    head = json.loads(line)
    name, _ = head.pop("order"), head.pop("trace")
    if name == Train.__name__:
        groups, start = [], 0
        for size in head["sizes"]:
            groups.append(group_from_bytes(body[start : start + size]))
            start += size
        return Train(tuple(groups))
    if name == Snapshot.__name__:
        return Snapshot(PublishKind(head["kind"]))
    if name == Export.__name__:
        to = Destinations(head["to"]["checkpoint_address"], tuple(head["to"]["replica_addresses"]))
        return Export(PublishKind(head["kind"]), head["version"], to, head["ticket"])
    if name == Restore.__name__:
        state = AdapterRef(**head["state"]) if head["state"] else None
        return Restore(AdapterRef(**head["adapter"]), state)
    return Stop()


def sent_of(answer: Answer) -> Sent:
    """What a rank has sent, from its answer."""
    return Sent(ShardRef(**{**answer["shard"], "kind": PublishKind(answer["shard"]["kind"])}), answer["missed"])


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
