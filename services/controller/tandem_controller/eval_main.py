"""`tandem eval`: the suites under one adapter, with rollout replicas alone."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from rich.console import Console

from tandem.cluster import deployed
from tandem.config import Config
from tandem.storage import latest, read_manifest
from tandem.types import AdapterRef, PublishKind, UserError
from tandem_controller import evaluate as ev
from tandem_controller import preflight, report
from tandem_controller.fleet import Fleet
from tandem_controller.run_dir import absolute, resolved, write_json


def run_evaluation(config: Config, adapter: str, limit: int, json_file: Path | None, console: Console) -> None:
    """Play the suites and print the solve rates; `limit` cuts each suite's tasks, 0 does not.

    Raises:
        UserError: the config or the machine cannot do it. NotFound, DataCorrupt: the adapter is missing or damaged.
    """
    config = resolved(config)
    preflight.check(config)
    if json_file is not None and not json_file.absolute().parent.is_dir():
        raise UserError(f"--json {json_file}: its folder is not there; make it first")
    ref = resolve(config, adapter)
    suites = [ev.limited(suite, limit) for suite in ev.suites(config)]
    began = time.monotonic()
    with deployed(config, f"{config.run.name}-eval-{os.getpid()}", training=False) as deployment:
        results = asyncio.run(_play(config, deployment.rollouts, ref, suites))
    report.print_suites(console, f"of {ref.name}", results)
    console.print(f"{time.monotonic() - began:.1f} s", highlight=False)
    if json_file is not None:
        write_json(json_file, {"adapter": ref.name, "url": ref.url, "suites": ev.as_json(results)})


async def _play(config: Config, rollouts: tuple[str, ...], ref: AdapterRef, suites: list[ev.Suite]) -> report.Results:
    fleet = Fleet(rollouts, config.rollout)
    try:
        await fleet.load(ref)
        return await ev.evaluate(fleet, config, ref.version, suites)
    finally:
        await fleet.close()


def resolve(config: Config, adapter: str) -> AdapterRef:
    """The adapter that `none`, `latest` (of the recipe's store) or a published folder's URL means.

    Raises:
        UserError: the folder holds a training state. NotFound, DataCorrupt: nothing whole is published there.
    """
    if adapter == "none":
        return AdapterRef(0, "", "", "the base model", "", 0)
    if adapter == "latest":
        return latest(config.checkpoint.url).ref
    manifest = read_manifest(absolute(adapter))
    if manifest.kind is not PublishKind.ADAPTER:
        raise UserError(f"--adapter {adapter}: holds a training {manifest.kind}; name a folder below adapters/")
    return manifest.ref(absolute(adapter))
