"""tandem.learner.v1 over a Leader: decode, call, encode."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc

from tandem.rpc import codec
from tandem.rpc.gen.learner.v1 import learner_pb2 as pb
from tandem.rpc.gen.learner.v1 import learner_pb2_grpc
from tandem.rpc.status_codec import encode_activity
from tandem.types import TrainResult, TrajectoryGroup, UserError
from tandem_learner.leader import Leader
from tandem_learner.orders import Destinations

SERVICE = pb.DESCRIPTOR.services_by_name["LearnerService"].full_name


class LearnerServicer(learner_pb2_grpc.LearnerServiceServicer):
    """Rank 0's servicer. Exceptions become statuses in the server's boundary."""

    def __init__(self, leader: Leader) -> None:
        self.leader = leader

    def register(self, server: grpc.aio.Server) -> None:
        """Add this servicer to a server."""
        learner_pb2_grpc.add_LearnerServiceServicer_to_server(self, server)

    async def TrainStep(
        self, request_iterator: AsyncIterator[pb.TrainStepRequest], context: grpc.aio.ServicerContext
    ) -> pb.TrainStepResponse:
        """Header, then groups."""
        header = await _header(request_iterator)
        request_id = _id(header)
        groups: list[TrajectoryGroup] = []
        if not self.leader.known(request_id):
            self.leader.check_version(header.expected_version)  # before the groups have travelled
            groups = [_group(part) async for part in request_iterator]
            if len(groups) != header.groups:
                raise UserError(
                    f"train step: {len(groups)} groups came where the header said {header.groups}; send "
                    "the whole step again"
                )
        result: TrainResult = await self.leader.train_step(request_id, header.expected_version, groups)
        return codec.encode_train_result(result)

    async def Snapshot(self, request: pb.SnapshotRequest, context: grpc.aio.ServicerContext) -> pb.SnapshotResponse:
        """Every rank's copy."""
        kind = codec.decode_kind(request.kind)
        taken = await self.leader.snapshot(_id(request), request.expected_version, kind)
        return pb.SnapshotResponse(bytes=taken.size, seconds=taken.seconds)

    async def Export(self, request: pb.ExportRequest, context: grpc.aio.ServicerContext) -> pb.ExportResponse:
        """Every rank's shard."""
        kind = codec.decode_kind(request.kind)
        to = Destinations(
            codec.check_address(request.checkpoint_address), tuple(map(codec.check_address, request.replica_addresses))
        )
        exported = await self.leader.export(_id(request), request.expected_version, kind, to)
        shards = [codec.encode_shard(shard) for shard in exported.shards]
        return pb.ExportResponse(shards=shards, missed=exported.missed)

    async def Restore(self, request: pb.RestoreRequest, context: grpc.aio.ServicerContext) -> pb.RestoreResponse:
        """From published folders."""
        state = codec.decode_adapter(request.state) if request.HasField("state") else None
        version = await self.leader.restore(_id(request), codec.decode_adapter(request.adapter), state)
        return pb.RestoreResponse(policy_version=version)

    async def GetStatus(self, request: pb.GetStatusRequest, context: grpc.aio.ServicerContext) -> pb.GetStatusResponse:
        """What the learner is."""
        status = self.leader.status()
        return pb.GetStatusResponse(
            policy_version=status.policy_version,
            world_size=status.world_size,
            base_model=status.base_model,
            trainable_parameters=status.trainable_parameters,
            adapter_config_json=status.adapter_config_json,
            activity=encode_activity(),
        )


async def _header(parts: AsyncIterator[pb.TrainStepRequest]) -> pb.TrainStepHeader:
    async for part in parts:
        if part.WhichOneof("part") == "header":
            return part.header
        break
    raise UserError("train step: the stream must begin with its header")


def _group(part: pb.TrainStepRequest) -> TrajectoryGroup:
    if part.WhichOneof("part") != "group":
        raise UserError("train step: only groups may follow the header")
    return codec.decode_group(part.group)


def _id(request: pb.TrainStepHeader | pb.SnapshotRequest | pb.ExportRequest | pb.RestoreRequest) -> str:
    """Of one kind of request: the answer to another would make no sense here."""
    if not request.request_id:
        raise UserError("the request has no request id; make one per intention and repeat it with every retry")
    return f"{request.DESCRIPTOR.name} {request.request_id}"
