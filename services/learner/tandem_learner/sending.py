"""A rank's shard on its way out of the learner, on the event loop: no rank's training waits for it."""

from __future__ import annotations

import asyncio

from tandem.rpc.clients import CheckpointClient
from tandem.types import ShardRef
from tandem_learner.host_copy import HostCopy, shard_file
from tandem_learner.orders import Destinations


async def send(copy: HostCopy, to: Destinations) -> ShardRef:
    """Check, hash and send a shard; what it is, once all destinations have it.

    Raises:
        DataCorrupt: the policy has overflowed.
        Unavailable, UserError: a destination is not there, or refuses the shard.
    """
    file = await asyncio.to_thread(shard_file, copy)
    client = CheckpointClient(to.checkpoint_address)
    try:
        return await client.put_shard(file.ref, file.chunks())
    finally:
        await client.close()
