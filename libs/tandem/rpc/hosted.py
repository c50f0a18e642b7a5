"""The process of one service that a Ray actor hosts: `python -m tandem.rpc.hosted LOG`, started by the actor alone.

It knows nothing of Ray. Its order comes on stdin, one JSON object; where it serves, or why it does not, goes as one
JSON line to the file descriptor that the order names. What it prints is its log. It ends with the actor's process.
"""

from __future__ import annotations

import asyncio
import faulthandler
import importlib
import json
import os
import sys
from dataclasses import asdict, dataclass, field
from typing import Any

from tandem.config import Config
from tandem.obs import get_logger, setup, span
from tandem.obs.metrics import setup_metrics
from tandem.obs.tracing import under
from tandem.rpc.alone import Service, serve_until_told
from tandem.rpc.door import Door
from tandem.rpc.keys import Keys
from tandem.runtime import end_with_parent
from tandem.types import Identity, Role, TandemError, exit_code

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Order:
    """What to serve: a module with `start`, and what that is called with."""

    module: str
    config_json: str
    host: str
    door: Door
    arguments: dict[str, Any] = field(default_factory=dict)
    report: int = -1  # file descriptor
    parent: int = 0  # the actor's process
    node: str = ""
    trace: dict[str, str] = field(default_factory=dict)  # what the start of it is a part of

    def as_json(self) -> str:
        """One line. It holds the process's token."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str) -> Order:
        """The order of a line."""
        order = json.loads(line)
        me, keys = order["door"]["me"], Keys(**order["door"]["keys"])
        return cls(**{**order, "door": Door(Identity(**{**me, "role": Role(me["role"])}), keys)})


def main() -> int:
    """Serve as ordered until SIGTERM; the exit code."""
    faulthandler.enable()
    order = Order.from_json(sys.stdin.readline())
    end_with_parent(order.parent)
    os.set_inheritable(order.report, False)  # a child of ours must not hold it open
    config = Config.model_validate_json(order.config_json)
    setup(config, order.door.me, order.node)
    try:
        metrics = setup_metrics(config, order.door.me, order.host, order.node)
        asyncio.run(_serve(config, order, metrics))
    except TandemError as problem:
        _report(order, error=type(problem).__name__, message=str(problem))
        log.error("%s", problem)
        return exit_code(problem)
    return 0


async def _serve(config: Config, order: Order, metrics: str) -> None:
    module = importlib.import_module(order.module)

    def ended(service: Service) -> asyncio.Future[None]:
        own: asyncio.Future[None] | None = getattr(service, "ended", None)
        return own if own is not None else asyncio.get_running_loop().create_future()

    async def start() -> Service:
        with under(order.trace), span("load", {"tandem.member": str(order.door.me)}):
            return await module.start(config, host=order.host, door=order.door, **order.arguments)

    await serve_until_told(
        start(),
        lambda service: _report(order, address=service.address, metrics=metrics),
        ended,
    )


def _report(order: Order, **words: str) -> None:
    os.write(order.report, json.dumps(words).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main())
