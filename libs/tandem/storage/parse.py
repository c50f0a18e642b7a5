"""JSON from disk or wire into frozen dataclasses, with one clear line where it does not fit."""

from __future__ import annotations

from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from tandem.types import DataCorrupt

T = TypeVar("T")


def parse_json(shape: TypeAdapter[T], data: bytes, what: str) -> T:
    """Read `data` as `shape`.

    Raises:
        DataCorrupt: no JSON, or not of that shape; the line names `what` and the first wrong field.
    """
    try:
        return shape.validate_json(data)
    except ValidationError as problem:
        first = problem.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise DataCorrupt(f"{what}: {where + ': ' if where else ''}{first['msg']}") from problem
