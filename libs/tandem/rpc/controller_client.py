"""Client of the controller's own service."""

from __future__ import annotations

from tandem.rpc.channel import Peer, new_request_id
from tandem.rpc.door import OPEN, Door
from tandem.rpc.gen.controller.v1 import controller_pb2 as pb
from tandem.rpc.gen.controller.v1 import controller_pb2_grpc
from tandem.rpc.run_codec import decode_status
from tandem.types import Role, RunStatus

ANSWER_S = 10.0  # these wait for nothing
DRAIN_S = 100.0  # nodes are asked their names, twice where there is none of that name


class ControllerClient:
    """The controller of one run."""

    def __init__(self, address: str, door: Door = OPEN) -> None:
        self.peer = Peer(Role.CONTROLLER, address, door)
        self.stub = controller_pb2_grpc.ControllerServiceStub(self.peer.channel)

    async def status(self, timeout_s: float = ANSWER_S) -> RunStatus:
        """How the run fares."""
        return decode_status(await self.peer.unary(self.stub.GetStatus, pb.GetStatusRequest(), timeout_s))

    async def scale(
        self, *, rollout: int | None = None, learner: int | None = None, timeout_s: float = ANSWER_S
    ) -> None:
        """So many replicas and ranks from the next step on. Raises UserError where it cannot be."""
        request = pb.ScaleRequest(request_id=new_request_id(), rollout=rollout, learner=learner)
        await self.peer.unary(self.stub.Scale, request, timeout_s)

    async def drain(self, node: str, why: str, timeout_s: float = DRAIN_S) -> None:
        """Take everything off a node; that goes on where the answer is not waited for. Raises UserError where nothing
        of the run is there."""
        request = pb.DrainRequest(request_id=new_request_id(), node=node, why=why)
        await self.peer.unary(self.stub.Drain, request, timeout_s)

    async def close(self) -> None:
        """Close the channel."""
        await self.peer.close()
