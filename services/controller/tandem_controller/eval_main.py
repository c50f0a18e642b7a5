"""`tandem eval`: the suites under one adapter, with rollout replicas alone."""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console

from tandem.cluster import deployed
from tandem.config import Config
from tandem.storage import latest, read_manifest
from tandem.types import AdapterRef
from tandem_controller import evaluate as ev
from tandem_controller import preflight, report
from tandem_controller.fleet import Fleet
from tandem_controller.run_dir import resolved, write_json


async def run_evaluation(config: Config, adapter: str, limit: int, json_file: Path | None, console: Console) -> None:
    """Play the suites and print the solve rates; `limit` cuts each suite's tasks, 0 does not.

    Raises:
        UserError: the config or the machine cannot do it. NotFound, DataCorrupt: the adapter is missing or damaged.
    """
    config = resolved(config)
    preflight.check(config)
    ref = resolve(config, adapter)
    suites = [ev.limited(suite, limit) for suite in ev.suites(config)]
    with deployed(config, training=False) as deployment:
        fleet = Fleet(deployment.rollouts)
        try:
            await fleet.load(ref)
            began = time.monotonic()
            results = await ev.evaluate(fleet, config, ref.version, suites)
        finally:
            await fleet.close()
    report.print_suites(console, f"of {ref.name}", results)
    console.print(f"{time.monotonic() - began:.1f} s", highlight=False)
    if json_file is not None:
        write_json(json_file, {"adapter": ref.name, "url": ref.url, "suites": ev.as_json(results)})


def resolve(config: Config, adapter: str) -> AdapterRef:
    """The adapter that `none`, `latest` (of the recipe's store) or a published folder's URL means."""
    if adapter == "none":
        return AdapterRef(0, "", "", "the base model", "", 0)
    if adapter == "latest":
        return latest(config.checkpoint.url).ref
    return read_manifest(adapter).ref(adapter)
