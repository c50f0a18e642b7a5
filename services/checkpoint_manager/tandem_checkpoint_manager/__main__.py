"""python -m tandem_checkpoint_manager RECIPE [key=value ...] [--host HOST] [--port N]: serve without Ray."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence

from tandem.config import Config, load_recipe
from tandem.obs import setup_logging
from tandem.runtime import until_signal
from tandem.types import TandemError
from tandem_checkpoint_manager.main import start


async def _run(config: Config, host: str, port: int) -> None:
    service = await start(config, host=host, port=port)
    print(json.dumps({"service": "checkpoint_manager", "address": service.address}), flush=True)
    await until_signal()
    await service.stop()


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGINT or SIGTERM; the exit code."""
    parser = argparse.ArgumentParser("tandem_checkpoint_manager", description="Serve tandem.checkpoint.v1 without Ray.")
    parser.add_argument("recipe", help="recipe YAML")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="overrides of the recipe")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    given = parser.parse_intermixed_args(arguments)
    try:
        config = load_recipe(given.recipe, given.overrides)
        setup_logging(config.obs, "checkpoint_manager")
        asyncio.run(_run(config, given.host, given.port))
    except TandemError as problem:
        print(f"tandem_checkpoint_manager: {problem}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
