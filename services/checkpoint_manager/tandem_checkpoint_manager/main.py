"""Start the checkpoint manager: in a host's process through `start`, or alone from the command line."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tandem.config import Config, load_recipe
from tandem.obs import setup_logging
from tandem.rpc.gen.checkpoint.v1 import checkpoint_pb2, checkpoint_pb2_grpc
from tandem.rpc.server import RunningServer, serve
from tandem.runtime import until_signal
from tandem.types import UserError

from tandem_checkpoint_manager.core import CheckpointManager
from tandem_checkpoint_manager.servicer import CheckpointServicer

SERVICE = checkpoint_pb2.DESCRIPTOR.services_by_name["CheckpointService"].full_name


@dataclass(frozen=True, slots=True)
class CheckpointService:
    """A running checkpoint manager."""

    manager: CheckpointManager
    server: RunningServer

    @property
    def address(self) -> str:
        """host:port."""
        return self.server.address

    async def stop(self) -> None:
        """Let running calls end, then stop."""
        await self.server.stop()
        await asyncio.to_thread(self.manager.close)


async def start(
    config: Config, *, host: str = "127.0.0.1", port: int = 0, rewind_to: int | None = None
) -> CheckpointService:
    """Serve the store at `config.checkpoint.url` (empty: `checkpoints` in the run directory).

    `rewind_to` is for a run that resumes from that version: adapters and states newer than it are removed first.

    Raises:
        UserError: the store cannot be written, or the port is taken.
    """
    url = config.checkpoint.url or str(Path(config.run.dir) / config.run.name / "checkpoints")
    manager = await asyncio.to_thread(CheckpointManager, url, config.checkpoint.keep)
    if rewind_to is not None:
        await asyncio.to_thread(manager.rewind, rewind_to)
    servicer = CheckpointServicer(manager)
    server = await serve(
        lambda grpc_server: checkpoint_pb2_grpc.add_CheckpointServiceServicer_to_server(
            servicer, grpc_server
        ),
        [SERVICE],
        host=host,
        port=port,
    )
    return CheckpointService(manager, server)


async def _run(config: Config, host: str, port: int) -> None:
    service = await start(config, host=host, port=port)
    print(json.dumps({"service": "checkpoint_manager", "address": service.address}), flush=True)
    await until_signal()
    await service.stop()


def main(arguments: Sequence[str] | None = None) -> int:
    """python -m tandem_checkpoint_manager RECIPE [key=value ...] [--host HOST] [--port N]; the exit code."""
    parser = argparse.ArgumentParser(
        "tandem_checkpoint_manager", description="Serve tandem.checkpoint.v1 without Ray."
    )
    parser.add_argument("recipe", help="recipe YAML")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="overrides of the recipe")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    given = parser.parse_intermixed_args(arguments)
    try:
        config = load_recipe(given.recipe, given.overrides)
        setup_logging(config.obs, "checkpoint_manager")
        asyncio.run(_run(config, given.host, given.port))
    except UserError as problem:
        print(f"tandem_checkpoint_manager: {problem}", file=sys.stderr)
        return 2
    return 0
