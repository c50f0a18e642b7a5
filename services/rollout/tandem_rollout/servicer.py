"""tandem.rollout.v1 over a replica: decode, call, encode."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing

import grpc

from tandem.obs import span
from tandem.rpc import codec
from tandem.rpc.gen.rollout.v1 import rollout_pb2 as pb
from tandem.rpc.gen.rollout.v1 import rollout_pb2_grpc
from tandem.rpc.shards import shard_header, write_chunks
from tandem.rpc.status_codec import encode_activity
from tandem.types import RolloutTask
from tandem_rollout.replica import Replica

SERVICE = pb.DESCRIPTOR.services_by_name["RolloutService"].full_name
Context = grpc.aio.ServicerContext


class RolloutServicer(rollout_pb2_grpc.RolloutServiceServicer):
    """Serves one replica."""

    def __init__(self, replica: Replica) -> None:
        self.replica = replica

    def register(self, server: grpc.aio.Server) -> None:
        """Add this servicer to a server."""
        rollout_pb2_grpc.add_RolloutServiceServicer_to_server(self, server)

    async def Rollout(self, request: pb.RolloutRequest, context: Context) -> AsyncIterator[pb.RolloutResponse]:
        """A group a message; a caller that goes away ends its episodes, a retry plays them anew."""
        task = RolloutTask(
            env=request.env,
            seeds=tuple(request.seeds),
            group_size=request.group_size,
            policy_version=request.policy_version,
            sampling=codec.decode_sampling(request.sampling),
            context=codec.decode_context(request.context),
            max_turns=request.max_turns,
            sampling_seed=request.sampling_seed,
            may_advance=request.may_advance,
        )
        async with aclosing(self.replica.rollout(task)) as groups:
            async for group in groups:
                yield pb.RolloutResponse(group=codec.encode_group(group))

    async def PutShard(
        self, request_iterator: AsyncIterator[pb.PutShardRequest], context: Context
    ) -> pb.PutShardResponse:
        """Header, then chunks; each is hashed and written before the next is taken."""
        parts = aiter(request_iterator)
        ref = codec.decode_shard((await shard_header(parts)).shard)
        with span("receive", {"rl.rank": ref.rank, "rl.policy_version": ref.version, "tandem.bytes": ref.size}):
            await write_chunks(parts, self.replica.receive(ref))
        return pb.PutShardResponse(shard=codec.encode_shard(ref))

    async def LoadAdapter(self, request: pb.LoadAdapterRequest, context: Context) -> pb.LoadAdapterResponse:
        """Idempotent by version and content."""
        pushed = codec.decode_pushed(request.pushed) if request.HasField("pushed") else None
        loaded = await self.replica.load(codec.decode_adapter(request.adapter), pushed)
        return pb.LoadAdapterResponse(
            policy_version=loaded.policy_version,
            sha256=loaded.sha256,
            probe_logprob=loaded.probe_logprob,
            seconds=loaded.seconds,
        )

    async def Sleep(self, request: pb.SleepRequest, context: Context) -> pb.SleepResponse:
        """Idempotent."""
        return pb.SleepResponse(freed=await self.replica.sleep())

    async def Wake(self, request: pb.WakeRequest, context: Context) -> pb.WakeResponse:
        """Idempotent."""
        await self.replica.wake()
        return pb.WakeResponse()

    async def GetStatus(self, request: pb.GetStatusRequest, context: Context) -> pb.GetStatusResponse:
        """Answered at any time, whatever the engine does."""
        status = self.replica.status()
        return pb.GetStatusResponse(
            healthy=status.healthy,
            asleep=status.asleep,
            policy_version=status.policy_version,
            base_model=status.base_model,
            max_lora_rank=status.max_lora_rank,
            episodes_running=status.episodes_running,
            episodes_done=status.episodes_done,
            turns_done=status.turns_done,
            tokens_done=status.tokens_done,
            activity=encode_activity(),
        )
