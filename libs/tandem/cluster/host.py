"""The actor that hosts one service process: it imports the service by name, starts it, and says where it listens."""

from __future__ import annotations

import importlib
import os
import socket
import time
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError

from tandem.config import Config
from tandem.obs import get_logger, setup_logging
from tandem.rpc.door import Door
from tandem.types import TandemError

log = get_logger(__name__)


@ray.remote(max_restarts=0)
class ServiceHost:
    """Hosts one service. Its process has the service's own dependencies; the caller needs none of them."""

    def __init__(self, module: str, config_json: str, host: str, door: Door) -> None:
        self.module, self.door = module, door
        self.config = Config.model_validate_json(config_json)
        self.host = host or ray.util.get_node_ip_address()
        self.service: Any = None

    async def free_address(self) -> str:
        """host:port that is free on this node now."""
        with socket.socket() as probe:
            probe.bind((self.host, 0))
            return f"{self.host}:{probe.getsockname()[1]}"

    async def address(self) -> str:
        """Where the service listens; empty for one that serves nothing, or not yet."""
        return self.service.address if self.service is not None else ""

    async def start(self, **arguments: Any) -> str:
        """Run the module's `start`; the address it serves at, empty for one that serves none."""
        setup_logging(self.config.obs, f"{self.module.split('.')[0].removeprefix('tandem_')}[{os.getpid()}]")
        module = importlib.import_module(self.module)
        self.service = await module.start(self.config, host=self.host, door=self.door, **arguments)
        return self.service.address

    async def stop(self) -> None:
        """Stop the service in order."""
        if self.service is not None:
            await self.service.stop()


def result(reference: Any, until: float, what: str) -> Any:
    """An actor's answer, waited for until `time.monotonic()` reaches `until`.

    Raises:
        TandemError: the one that the actor raised, without Ray's wrapping; or one line on what became of the actor.
    """
    try:
        return ray.get(reference, timeout=max(0.01, until - time.monotonic()))
    except GetTimeoutError as problem:
        raise TandemError(f"{what}: not done in time; see Ray's logs of that actor") from problem
    except RayTaskError as problem:
        if isinstance(problem.cause, TandemError):
            raise problem.cause from None
        log.error("%s failed: %s", what, problem)
        raise TandemError(f"{what} failed: {type(problem.cause).__name__}: {problem.cause}; see the log") from None
    except RayError as problem:
        raise TandemError(f"{what}: {' '.join(str(problem).split())}") from None
