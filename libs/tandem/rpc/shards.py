"""Receiving a shard: a header, then its bytes, as the checkpoint manager and the rollout replicas take them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractContextManager
from typing import Any, Protocol

from tandem.runtime import in_threads, to_its_end
from tandem.types import UserError


class Writer(Protocol):
    """What takes the bytes."""

    def write(self, chunk: bytes) -> None:
        """Take the next ones."""
        ...


async def shard_header(parts: AsyncIterator[Any]) -> Any:
    """The header that a PutShard stream begins with. Raises UserError where there is none."""
    async for first in parts:
        if first.WhichOneof("part") == "header":
            return first.header
        break
    raise UserError("PutShard: the first message must be the header")


async def write_chunks(parts: AsyncIterator[Any], scope: AbstractContextManager[Writer]) -> None:
    """Write the chunks that follow into what `scope` opens, each before the next is taken, all off the event loop.

    Raises:
        UserError: something else than a chunk follows. And what `scope` raises.
    """
    async with in_threads(scope) as writer:
        async for part in parts:
            if part.WhichOneof("part") != "chunk":
                raise UserError("PutShard: only chunks may follow the header")
            await to_its_end(writer.write, part.chunk)
