"""tandem.checkpoint.v1 over the core: decode, call the core in a thread (it works on files), encode."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Mapping

import grpc

from tandem.obs import span
from tandem.rpc import codec
from tandem.rpc.gen.checkpoint.v1 import checkpoint_pb2 as pb
from tandem.rpc.gen.checkpoint.v1 import checkpoint_pb2_grpc
from tandem.rpc.shards import shard_header, write_chunks
from tandem.rpc.status_codec import encode_activity
from tandem.storage import Published, read_metadata
from tandem.types import MirrorStatus, PublishKind, UserError
from tandem_checkpoint_manager.core import CheckpointManager
from tandem_checkpoint_manager.mirror import Mirror
from tandem_checkpoint_manager.status import checkpoint_status

SERVICE = pb.DESCRIPTOR.services_by_name["CheckpointService"].full_name
Context = grpc.aio.ServicerContext
AT_ONCE = 4  # shards received at once: each holds a few chunks in memory; the others' senders wait


class CheckpointServicer(checkpoint_pb2_grpc.CheckpointServiceServicer):
    """Serves one manager."""

    def __init__(self, manager: CheckpointManager, mirror: Mirror | None = None) -> None:
        self.manager = manager
        self.mirror = mirror
        self._receiving = asyncio.Semaphore(AT_ONCE)
        self._deleted: deque[str] = deque(maxlen=1024)  # request ids, so that a retried delete is no NOT_FOUND

    def register(self, server: grpc.aio.Server) -> None:
        """Add this servicer to a server."""
        checkpoint_pb2_grpc.add_CheckpointServiceServicer_to_server(self, server)

    async def PutShard(
        self, request_iterator: AsyncIterator[pb.PutShardRequest], context: Context
    ) -> pb.PutShardResponse:
        """Header, then chunks, each hashed and written before the next is taken; or the header alone."""
        parts = aiter(request_iterator)
        header = await shard_header(parts)
        ref = codec.decode_shard(header.shard)
        if header.spooled:
            async for _ in parts:
                raise UserError("PutShard: the header says that the bytes are spooled; none may follow")
            return pb.PutShardResponse(shard=codec.encode_shard(await asyncio.to_thread(self.manager.take, ref)))
        async with self._receiving:
            with span("receive", {"rl.rank": ref.rank, "rl.policy_version": ref.version, "tandem.bytes": ref.size}):
                await write_chunks(parts, self.manager.receive(ref))
        return pb.PutShardResponse(shard=codec.encode_shard(ref))

    async def Publish(self, request: pb.PublishRequest, context: Context) -> pb.PublishResponse:
        """Idempotent by kind, version and content."""
        ref = await asyncio.to_thread(
            self.manager.publish,
            codec.decode_kind(request.kind),
            request.version,
            world_size=request.world_size,
            base_model=request.base_model,
            adapter_config_json=request.adapter_config_json,
            metadata_json=request.metadata_json,
        )
        if self.mirror:
            self.mirror.wake()
        return pb.PublishResponse(adapter=codec.encode_adapter(ref))

    async def GetAdapter(self, request: pb.GetAdapterRequest, context: Context) -> pb.GetAdapterResponse:
        """By version, or the latest."""
        version = request.version if request.HasField("version") else None
        found = await asyncio.to_thread(self.manager.get, codec.decode_kind(request.kind), version)
        return pb.GetAdapterResponse(adapter=codec.encode_adapter(found.ref), metadata_json=_metadata(found))

    async def ListAdapters(self, request: pb.ListAdaptersRequest, context: Context) -> pb.ListAdaptersResponse:
        """Oldest first."""
        found = await asyncio.to_thread(self.manager.list, codec.decode_kind(request.kind))
        return pb.ListAdaptersResponse(adapters=[codec.encode_adapter(item.ref) for item in found])

    async def DeleteAdapter(self, request: pb.DeleteAdapterRequest, context: Context) -> pb.DeleteAdapterResponse:
        """Not the latest. Idempotent by request id."""
        if request.request_id not in self._deleted:
            await asyncio.to_thread(self.manager.delete, codec.decode_kind(request.kind), request.version)
            self._deleted.append(request.request_id)
        return pb.DeleteAdapterResponse()

    async def ScoreAdapter(self, request: pb.ScoreAdapterRequest, context: Context) -> pb.ScoreAdapterResponse:
        """The same again changes nothing."""
        kind, scores = codec.decode_kind(request.kind), dict(request.scores)
        await asyncio.to_thread(self.manager.score, kind, request.version, scores)
        if self.mirror:
            self.mirror.wake()
        return pb.ScoreAdapterResponse()

    async def GetStatus(self, request: pb.GetStatusRequest, context: Context) -> pb.GetStatusResponse:
        """Of manager and mirror."""
        status = await asyncio.to_thread(checkpoint_status, self.manager, self.mirror)
        return pb.GetStatusResponse(
            url=status.url,
            latest=_versions(status.latest),
            publish_bytes=status.publish_bytes,
            publish_seconds=status.publish_seconds,
            problem=status.problem,
            mirror=_mirror(status.mirror) if status.mirror else None,
            activity=encode_activity(),
        )


def _metadata(found: Published) -> str:
    return json.dumps(read_metadata(found))


def _mirror(status: MirrorStatus) -> pb.MirrorStatus:
    return pb.MirrorStatus(
        url=status.url,
        durable=_versions(status.durable),
        backlog=status.backlog,
        copy_bytes=status.copy_bytes,
        copy_seconds=status.copy_seconds,
        problem=status.problem,
    )


def _versions(versions: Mapping[PublishKind, int]) -> list[pb.KindVersion]:
    return [pb.KindVersion(kind=codec.encode_kind(kind), version=version) for kind, version in versions.items()]
