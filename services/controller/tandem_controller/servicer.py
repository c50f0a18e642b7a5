"""tandem.controller.v1 over Controls: decode, call, encode."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import grpc

from tandem.obs import get_logger
from tandem.rpc.gen.controller.v1 import controller_pb2 as pb
from tandem.rpc.gen.controller.v1 import controller_pb2_grpc
from tandem.rpc.run_codec import encode_status
from tandem.types import UserError

if TYPE_CHECKING:
    from tandem_controller.control import Controls

log = get_logger(__name__)
SERVICE = pb.DESCRIPTOR.services_by_name["ControllerService"].full_name
MOST = 4096  # replicas or ranks: a number above it is a slip of the finger
LONGEST = 500  # characters of a node's name or a reason


class ControllerServicer(controller_pb2_grpc.ControllerServiceServicer):
    """Serves one run."""

    def __init__(self, controls: Controls) -> None:
        self.controls = controls
        self._drains: set[asyncio.Task[None]] = set()

    def register(self, server: grpc.aio.Server) -> None:
        """Add this servicer to a server."""
        controller_pb2_grpc.add_ControllerServiceServicer_to_server(self, server)

    async def GetStatus(self, request: pb.GetStatusRequest, context: grpc.aio.ServicerContext) -> pb.GetStatusResponse:
        """How the run fares."""
        return encode_status(self.controls.status())

    async def Scale(self, request: pb.ScaleRequest, context: grpc.aio.ServicerContext) -> pb.ScaleResponse:
        """Numbers from the next step on."""
        rollout, learner = (
            _count(name, getattr(request, name)) if request.HasField(name) else None for name in ("rollout", "learner")
        )
        if rollout is None and learner is None:
            raise UserError("scale: name rollout, learner, or both")
        await self.controls.scale(rollout=rollout, learner=learner)
        return pb.ScaleResponse()

    async def Drain(self, request: pb.DrainRequest, context: grpc.aio.ServicerContext) -> pb.DrainResponse:
        """A node is left."""
        node, why = _line(request.node), _line(request.why)
        if not node:
            raise UserError("drain: name a node, as `tandem status` shows it")
        draining = asyncio.create_task(self.controls.drain(node, why or "asked for"))
        self._drains.add(draining)
        draining.add_done_callback(self._drained)
        await asyncio.shield(draining)  # who gives up waiting does not leave it half done
        return pb.DrainResponse()

    async def close(self) -> None:
        """Drain nothing more."""
        for draining in self._drains:
            draining.cancel()
        await asyncio.gather(*self._drains, return_exceptions=True)

    def _drained(self, draining: asyncio.Task[None]) -> None:
        self._drains.discard(draining)
        if not draining.cancelled() and (problem := draining.exception()):
            log.warning("a drain failed: %s", problem)  # its caller may have gone


def _count(name: str, value: int) -> int:
    if not 1 <= value <= MOST:
        raise UserError(f"scale: {name}={value} is not within 1 .. {MOST}")
    return value


def _line(text: str) -> str:
    """One line of bounded length: it goes to logs and terminals."""
    return "".join(c if c.isprintable() else " " for c in text[:LONGEST]).strip()
