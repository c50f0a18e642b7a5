"""The actor that hosts one service: it starts the service's process, and says where it listens and how it ended.

The service has a process of its own, so that the actor outlives it and knows its exit status, whatever killed it.
Actor and service share a fate the other way round, too: with the actor's process, the service's ends.
"""

from __future__ import annotations

import os
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError

from tandem import types
from tandem.cluster.ends import End
from tandem.cluster.process import ServiceProcess
from tandem.obs import get_logger
from tandem.rpc.hosted import Order
from tandem.rpc.ports import held_address
from tandem.types import TandemError, Unavailable

log = get_logger(__name__)
NODE_NAME = "TANDEM_NODE_NAME"  # of the node, from Kubernetes' downward API
STOP_S = 20.0


@dataclass(frozen=True, slots=True)
class Started:
    """A hosted service that is up: host:port where it serves, if at all; node, process, log file; host:port where its
    metrics are scraped, if they are."""

    address: str
    node: str
    pid: int
    log: str
    metrics: str


def node_name() -> str:
    """The stable name of this process's node: its Kubernetes name where that is told, else Ray's id of it."""
    return os.environ.get(NODE_NAME) or ray.get_runtime_context().get_node_id()


@ray.remote(max_restarts=0)
class ServiceHost:
    """Hosts one service. The service's process has its own dependencies; the caller and the actor need none of them."""

    def __init__(self, order: Order, logs: str) -> None:
        """`logs`: the folder for the log, where this node has it; else there is a temporary one."""
        host = order.host or ray.util.get_node_ip_address()
        self.order = replace(order, host=host, parent=os.getpid(), node=node_name())
        me, folder = (
            order.door.me,
            Path(logs) if logs and Path(logs).is_dir() else Path(tempfile.gettempdir()) / "tandem-logs",
        )
        folder.mkdir(parents=True, exist_ok=True)
        self.log = folder / f"{me.role}-{me.index}-g{me.generation}.log"
        self.process: ServiceProcess | None = None
        self._held = ExitStack()

    async def free_address(self) -> str:
        """host:port that the service can listen at, and that nobody else on this node gets while this actor lives."""
        return self._held.enter_context(held_address(self.order.host))

    async def address(self) -> str:
        """Where the service listens; empty for one that serves nothing, or not yet."""
        return self.process.said.get("address", "") if self.process else ""

    async def start(self, **arguments: Any) -> Started:
        """Start the service's process and call its module's `start` there; returns once that has.

        Raises:
            TandemError: what that raised.
            Unavailable: the process ended for another reason, in one line.
        """
        self.process = ServiceProcess(replace(self.order, arguments=arguments), self.log)
        if await self.process.up():
            said = self.process.said
            return Started(said["address"], node_name(), self.process.pid, str(self.log), said["metrics"])
        end, said = await self.process.ended(), self.process.said
        if "error" in said:
            raise getattr(types, said["error"])(said["message"])
        raise Unavailable(f"its process: {end.why}; its log is {self.log} on node {node_name()}")

    async def ended(self) -> End:
        """How the service's process ended; answers only then. Call it once `start` has answered."""
        assert self.process is not None
        return await self.process.ended()

    async def stop(self, patience_s: float = STOP_S) -> None:
        """Stop the service in order; after `patience_s`, or at once where that is 0, by force, with its children."""
        if self.process is not None:
            await self.process.stop(patience_s)


def result(reference: Any, until: float, what: str) -> Any:
    """An actor's answer, waited for until `time.monotonic()` reaches `until`.

    Raises:
        Unavailable: no answer in time, or the actor or its node is gone: another one may do it.
        TandemError: the one that the actor raised, without Ray's wrapping; or one line on what else it raised.
    """
    try:
        return ray.get(reference, timeout=max(0.01, until - time.monotonic()))
    except GetTimeoutError as problem:
        raise Unavailable(f"{what}: not done in time; see its log") from problem
    except RayTaskError as problem:
        if isinstance(problem.cause, TandemError):
            raise problem.cause from None
        log.error("%s failed: %s", what, problem)
        raise TandemError(f"{what} failed: {type(problem.cause).__name__}: {problem.cause}; see the log") from None
    except RayError as problem:
        raise Unavailable(f"{what}: {' '.join(str(problem).split())}") from None
