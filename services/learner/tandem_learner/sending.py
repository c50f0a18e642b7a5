"""A rank's shard on its way out of the learner, on the event loop: no rank's training waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from threading import Event

from tandem.rpc.clients import CheckpointClient, RolloutClient
from tandem.rpc.door import OPEN, Door
from tandem.runtime import deadline, retry, together
from tandem.storage import write_shard
from tandem.types import TandemError, Unavailable
from tandem_learner.host_copy import HostCopy, ShardFile, shard_file
from tandem_learner.orders import Destinations, Sent

# A replica that takes longer loads the adapter from the store: the export, and what is published of it, wait no longer.
REPLICA_S = 120.0


async def send(
    copy: HostCopy, to: Destinations, timeout_s: float, *, resend_s: float = 0, shared: str = "", door: Door = OPEN
) -> Sent:
    """Check, hash and send a shard to all destinations at the same time; what it is, and which replicas missed it.

    `timeout_s` is how long rank 0 waits for all of it: replicas have half of that, and `REPLICA_S` at most. A manager
    that is gone is tried again for `resend_s`: the same bytes again are welcome there.

    `shared` is the URL of a store whose folder is there for this rank and the manager: the manager's shard is written
    to it, and no bytes travel.

    Raises:
        DataCorrupt: the policy has overflowed.
        Unavailable, UserError: the checkpoint manager is not there, or refuses the shard. A replica's failure is told
            in the answer: it keeps nobody else from the shard.
    """
    file = await asyncio.to_thread(shard_file, copy, door.me.generation)
    replica_s = min(REPLICA_S, timeout_s / 2)
    replicas = [_to_replica(file, address, replica_s, door) for address in to.replica_addresses]
    sending = _to_manager(file, to.checkpoint_address, timeout_s, resend_s, shared, door)
    _, *problems = await together(sending, *replicas)
    found = zip(to.replica_addresses, problems, strict=True)
    return Sent(file.ref, {address: problem for address, problem in found if problem})


async def _to_manager(file: ShardFile, address: str, timeout_s: float, resend_s: float, shared: str, door: Door) -> str:
    client = CheckpointClient(address, door)

    async def once() -> None:
        if shared:  # written again, too: a manager that starts clears the folder
            await write_shared(file, shared)
            await client.put_spooled(file.ref, timeout_s)
        else:
            await client.put_shard(file.ref, file.chunks(), timeout_s)

    try:
        async with deadline(timeout_s, f"learner rank {file.ref.rank}: sending to the checkpoint manager at {address}"):
            await retry(once, for_s=resend_s, first_s=0.5)
    finally:
        await client.close()
    return ""


async def write_shared(file: ShardFile, url: str) -> None:
    """Write a shard into the folder of the store at `url`. Where it is cancelled it ends once the thread that writes
    has: what that reads is written over next. Raises as `write_shard`."""
    given_up = Event()

    def pieces() -> Iterator[bytes]:
        for chunk in file.chunks():
            yield chunk
            if given_up.is_set():  # also after the last one: no file gets its name
                raise Unavailable(f"learner rank {file.ref.rank}: writing its shard was given up")

    writing = asyncio.ensure_future(asyncio.to_thread(write_shard, url, file.ref, pieces()))
    try:
        await asyncio.shield(writing)
    finally:
        given_up.set()
        await asyncio.gather(writing, return_exceptions=True)


async def _to_replica(file: ShardFile, address: str, timeout_s: float, door: Door) -> str:
    """Empty, or why the replica did not get it."""
    client = RolloutClient(address, door)
    try:
        await client.put_shard(file.ref, file.chunks(), timeout_s)
    except TandemError as problem:
        return f"learner rank {file.ref.rank}: {problem}"
    finally:
        await client.close()
    return ""
