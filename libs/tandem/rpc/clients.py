"""Clients of the three services: dataclasses in, dataclasses out, every call with a deadline in seconds.

A call that changes something is one intention: who tries it again passes the same `request_id` (`new_request_id`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence

from tandem.rpc import codec, status_codec
from tandem.rpc.channel import Peer, new_request_id
from tandem.rpc.door import OPEN, Door
from tandem.rpc.gen.checkpoint.v1 import checkpoint_pb2 as cpb
from tandem.rpc.gen.checkpoint.v1 import checkpoint_pb2_grpc
from tandem.rpc.gen.common.v1 import common_pb2
from tandem.rpc.gen.learner.v1 import learner_pb2 as lpb
from tandem.rpc.gen.learner.v1 import learner_pb2_grpc
from tandem.rpc.gen.rollout.v1 import rollout_pb2 as rpb
from tandem.rpc.gen.rollout.v1 import rollout_pb2_grpc
from tandem.types import (
    AdapterLoaded,
    AdapterRef,
    CheckpointStatus,
    Exported,
    Identity,
    LearnerStatus,
    PublishKind,
    Pushed,
    Role,
    RolloutStatus,
    RolloutTask,
    ShardRef,
    SnapshotTaken,
    TrainResult,
    TrajectoryGroup,
    UserError,
)

SHORT_S = 30.0
LONG_S = 600.0


class RolloutClient:
    """One rollout replica."""

    def __init__(self, address: str, door: Door = OPEN, callee: Identity | None = None) -> None:
        self.peer = Peer(Role.ROLLOUT, address, door, callee)
        self.stub = rollout_pb2_grpc.RolloutServiceStub(self.peer.channel)

    async def rollout(
        self, task: RolloutTask, timeout_s: float = LONG_S, request_id: str = ""
    ) -> AsyncIterator[TrajectoryGroup]:
        """Groups as they end, in any order."""
        request = rpb.RolloutRequest(
            request_id=request_id or new_request_id(),
            policy_version=task.policy_version,
            env=task.env,
            seeds=task.seeds,
            group_size=task.group_size,
            sampling=codec.encode_sampling(task.sampling),
            context=codec.encode_context(task.context),
            max_turns=task.max_turns,
            sampling_seed=task.sampling_seed,
            may_advance=task.may_advance,
        )
        async for reply in self.peer.stream(self.stub.Rollout, request, timeout_s):
            yield codec.decode_group(reply.group)

    async def put_shard(self, shard: ShardRef, chunks: Iterable[bytes], timeout_s: float = LONG_S) -> ShardRef:
        """Send one rank's shard of an adapter, in chunks of at most 1 MiB, for `load_adapter` to join."""

        def parts() -> Iterable[rpb.PutShardRequest]:
            yield rpb.PutShardRequest(header=rpb.ShardHeader(shard=codec.encode_shard(shard)))
            for chunk in chunks:
                yield rpb.PutShardRequest(chunk=chunk)

        return codec.decode_shard((await self.peer.unary(self.stub.PutShard, parts(), timeout_s)).shard)

    async def load_adapter(
        self, adapter: AdapterRef, pushed: Pushed | None = None, timeout_s: float = LONG_S, request_id: str = ""
    ) -> AdapterLoaded:
        """Serve an adapter: a published one, or with `pushed` the one whose shards were sent, of which only version
        and base model need to be known. Version 0 with an empty url is the bare base model."""
        request = rpb.LoadAdapterRequest(
            request_id=request_id or new_request_id(),
            adapter=codec.encode_adapter(adapter),
            pushed=codec.encode_pushed(pushed) if pushed else None,
        )
        reply = await self.peer.unary(self.stub.LoadAdapter, request, timeout_s)
        return AdapterLoaded(reply.policy_version, reply.sha256, reply.probe_logprob, reply.seconds)

    async def sleep(self, timeout_s: float = LONG_S, request_id: str = "") -> bool:
        """Free device memory; False where the engine has no sleep mode."""
        request = rpb.SleepRequest(request_id=request_id or new_request_id())
        return (await self.peer.unary(self.stub.Sleep, request, timeout_s)).freed

    async def wake(self, timeout_s: float = LONG_S, request_id: str = "") -> None:
        """Take device memory back."""
        request = rpb.WakeRequest(request_id=request_id or new_request_id())
        await self.peer.unary(self.stub.Wake, request, timeout_s)

    async def status(self, timeout_s: float = SHORT_S) -> RolloutStatus:
        """What the replica is, serves and has done."""
        reply = await self.peer.unary(self.stub.GetStatus, rpb.GetStatusRequest(), timeout_s)
        return status_codec.decode_rollout_status(reply)

    async def close(self) -> None:
        """Close the channel."""
        await self.peer.close()


class LearnerClient:
    """The learner, through rank 0."""

    def __init__(self, address: str, door: Door = OPEN, callee: Identity | None = None) -> None:
        self.peer = Peer(Role.LEARNER, address, door, callee)
        self.stub = learner_pb2_grpc.LearnerServiceStub(self.peer.channel)

    async def train_step(
        self,
        expected_version: int,
        groups: Sequence[TrajectoryGroup],
        timeout_s: float = LONG_S,
        request_id: str = "",
    ) -> TrainResult:
        """Make one policy version of the groups. Raises UserError for one that no message can hold."""
        header = lpb.TrainStepHeader(
            request_id=request_id or new_request_id(), expected_version=expected_version, groups=len(groups)
        )
        parts = [lpb.TrainStepRequest(header=header), *(lpb.TrainStepRequest(group=_encoded(g)) for g in groups)]
        reply = await self.peer.unary(self.stub.TrainStep, parts, timeout_s)
        return codec.decode_train_result(reply)

    async def snapshot(
        self, expected_version: int, kind: PublishKind, timeout_s: float = LONG_S, request_id: str = ""
    ) -> SnapshotTaken:
        """Have every rank copy its shard to host memory; `export` then sends that, whatever the learner does next."""
        request = lpb.SnapshotRequest(
            request_id=request_id or new_request_id(), expected_version=expected_version, kind=codec.encode_kind(kind)
        )
        reply = await self.peer.unary(self.stub.Snapshot, request, timeout_s)
        return SnapshotTaken(expected_version, reply.bytes, reply.seconds)

    async def export(
        self,
        expected_version: int,
        kind: PublishKind,
        checkpoint_address: str,
        timeout_s: float = LONG_S,
        request_id: str = "",
    ) -> tuple[ShardRef, ...]:
        """Have every rank send its shard, as its snapshot holds it or else of now, to the checkpoint manager."""
        return (await self.push(expected_version, kind, checkpoint_address, (), timeout_s, request_id)).shards

    async def push(
        self,
        expected_version: int,
        kind: PublishKind,
        checkpoint_address: str,
        replica_addresses: Sequence[str],
        timeout_s: float = LONG_S,
        request_id: str = "",
    ) -> Exported:
        """As `export`, and to rollout replicas at the same time; one that does not get it is no failure."""
        request = lpb.ExportRequest(
            request_id=request_id or new_request_id(),
            expected_version=expected_version,
            kind=codec.encode_kind(kind),
            checkpoint_address=checkpoint_address,
            replica_addresses=replica_addresses,
        )
        reply = await self.peer.unary(self.stub.Export, request, timeout_s)
        return Exported(tuple(codec.decode_shard(shard) for shard in reply.shards), dict(reply.missed))

    async def restore(
        self, adapter: AdapterRef, state: AdapterRef | None, timeout_s: float = LONG_S, request_id: str = ""
    ) -> int:
        """Continue from published folders; the version the learner is then at."""
        request = lpb.RestoreRequest(
            request_id=request_id or new_request_id(),
            adapter=codec.encode_adapter(adapter),
            state=codec.encode_adapter(state) if state else None,
        )
        return (await self.peer.unary(self.stub.Restore, request, timeout_s)).policy_version

    async def status(self, timeout_s: float = SHORT_S) -> LearnerStatus:
        """What the learner is."""
        reply = await self.peer.unary(self.stub.GetStatus, lpb.GetStatusRequest(), timeout_s)
        return status_codec.decode_learner_status(reply)

    async def close(self) -> None:
        """Close the channel."""
        await self.peer.close()


class CheckpointClient:
    """The checkpoint manager."""

    def __init__(self, address: str, door: Door = OPEN, callee: Identity | None = None) -> None:
        self.peer = Peer(Role.CHECKPOINT_MANAGER, address, door, callee)
        self.stub = checkpoint_pb2_grpc.CheckpointServiceStub(self.peer.channel)

    async def put_shard(self, shard: ShardRef, chunks: Iterable[bytes], timeout_s: float = LONG_S) -> ShardRef:
        """Send one rank's shard, in chunks of at most 1 MiB."""

        def parts() -> Iterable[cpb.PutShardRequest]:
            yield cpb.PutShardRequest(header=cpb.ShardHeader(shard=codec.encode_shard(shard)))
            for chunk in chunks:
                yield cpb.PutShardRequest(chunk=chunk)

        return codec.decode_shard((await self.peer.unary(self.stub.PutShard, parts(), timeout_s)).shard)

    async def put_spooled(self, shard: ShardRef, timeout_s: float = LONG_S) -> ShardRef:
        """Tell of a shard that `tandem.storage.write_shard` has put where the manager looks for it."""
        header = cpb.PutShardRequest(header=cpb.ShardHeader(shard=codec.encode_shard(shard), spooled=True))
        return codec.decode_shard((await self.peer.unary(self.stub.PutShard, [header], timeout_s)).shard)

    async def publish(
        self,
        kind: PublishKind,
        version: int,
        *,
        world_size: int,
        base_model: str,
        adapter_config_json: str = "",
        metadata_json: str = "{}",
        timeout_s: float = LONG_S,
        request_id: str = "",
    ) -> AdapterRef:
        """Join the shards of one version and make the result visible."""
        request = cpb.PublishRequest(
            request_id=request_id or new_request_id(),
            kind=codec.encode_kind(kind),
            version=version,
            world_size=world_size,
            adapter_config_json=adapter_config_json,
            base_model=base_model,
            metadata_json=metadata_json,
        )
        return codec.decode_adapter((await self.peer.unary(self.stub.Publish, request, timeout_s)).adapter)

    async def get(
        self, kind: PublishKind, version: int | None = None, timeout_s: float = SHORT_S
    ) -> tuple[AdapterRef, str]:
        """A published version (the latest when None) and the metadata it was published with."""
        request = cpb.GetAdapterRequest(kind=codec.encode_kind(kind), version=version)
        reply = await self.peer.unary(self.stub.GetAdapter, request, timeout_s)
        return codec.decode_adapter(reply.adapter), reply.metadata_json

    async def list(self, kind: PublishKind, timeout_s: float = SHORT_S) -> tuple[AdapterRef, ...]:
        """All that is published of one kind, oldest first."""
        reply = await self.peer.unary(
            self.stub.ListAdapters, cpb.ListAdaptersRequest(kind=codec.encode_kind(kind)), timeout_s
        )
        return tuple(codec.decode_adapter(adapter) for adapter in reply.adapters)

    async def delete(self, kind: PublishKind, version: int, timeout_s: float = SHORT_S, request_id: str = "") -> None:
        """Remove one version."""
        request = cpb.DeleteAdapterRequest(
            request_id=request_id or new_request_id(), kind=codec.encode_kind(kind), version=version
        )
        await self.peer.unary(self.stub.DeleteAdapter, request, timeout_s)

    async def score(
        self,
        kind: PublishKind,
        version: int,
        scores: Mapping[str, float],
        timeout_s: float = SHORT_S,
        request_id: str = "",
    ) -> None:
        """Add figures to a published version."""
        request = cpb.ScoreAdapterRequest(
            request_id=request_id or new_request_id(), kind=codec.encode_kind(kind), version=version, scores=scores
        )
        await self.peer.unary(self.stub.ScoreAdapter, request, timeout_s)

    async def status(self, timeout_s: float = SHORT_S) -> CheckpointStatus:
        """What is published, and how the mirror stands."""
        reply = await self.peer.unary(self.stub.GetStatus, cpb.GetStatusRequest(), timeout_s)
        return status_codec.decode_checkpoint_status(reply)

    async def close(self) -> None:
        """Close the channel."""
        await self.peer.close()


def _encoded(group: TrajectoryGroup) -> common_pb2.TrajectoryGroup:
    """Before the call: an error inside a stream would only cancel it."""
    try:
        return codec.encode_group(group)
    except (ValueError, TypeError) as problem:
        raise UserError(f"group {group.group_id!r}: cannot be sent ({problem})") from problem
