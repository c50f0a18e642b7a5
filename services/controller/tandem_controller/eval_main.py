"""`tandem eval`: suites under one adapter, or two on the same tasks, with rollout replicas alone."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from tandem.cluster import Deployment, deployed
from tandem.config import Config
from tandem.obs import trace
from tandem.storage import VersionStore, latest, read_manifest
from tandem.storage.episode_index import INDEX
from tandem.storage.episode_lines import Beside, Label
from tandem.storage.episodes import write_groups
from tandem.types import AdapterRef, NotFound, PublishKind, TrajectoryGroup, UserError
from tandem_controller import preflight
from tandem_controller.evaluate import Save, evaluate
from tandem_controller.hosts import Hosts
from tandem_controller.outcomes import Evaluation, as_json, paired_rows
from tandem_controller.recording import speller
from tandem_controller.recoveries import Recoveries
from tandem_controller.replicas import Replicas
from tandem_controller.run_dir import absolute, known_run, resolved, write_json
from tandem_controller.suites import Suite, default_names, plan, with_samples
from tandem_controller.tables import print_evaluation, print_paired


@dataclass(frozen=True, slots=True)
class Request:
    """What `tandem eval` is asked for; see its options. An empty `against` compares with nothing."""

    adapter: str = "none"
    against: str = ""
    suites: tuple[str, ...] = ()
    limit: int = 0
    samples: int = 1
    temperature: float | None = None
    json_file: Path | None = None
    save: Path | None = None


def run_evaluation(config: Config, request: Request, console: Console) -> None:
    """Play the suites and print the figures.

    Raises:
        UserError: the config or the machine cannot do it. NotFound, DataCorrupt: an adapter is missing or damaged.
    """
    config = resolved(config)
    preflight.check(config)
    if config.rollout.engine.kind == "simulated":
        console.print(preflight.REHEARSAL, highlight=False, soft_wrap=True)
    for path in (request.json_file, request.save):
        if path is not None and not path.absolute().parent.is_dir():
            raise UserError(f"{path}: its folder is not there; make it first")
    if request.json_file is not None and request.json_file.is_dir():
        raise UserError(f"--json {request.json_file}: is a folder; name a file")
    if request.save is not None and request.save.exists() and not request.save.is_dir():
        raise UserError(f"--save {request.save}: is a file; name a folder")
    refs = [resolve(config, name) for name in (request.adapter, request.against) if name]
    if len(refs) == 2 and refs[0].sha256 == refs[1].sha256:
        raise UserError(
            f"--adapter {request.adapter} and --against {request.against} are the same: {refs[0].name}; "
            "name two that differ, such as --adapter latest --against none"
        )
    security = {"adapters_from": (*config.security.adapters_from, *(ref.url for ref in refs if ref.url))}
    config = config.model_copy(update={"security": config.security.model_copy(update=security)})
    folders = _folders(request)
    wanted = plan(config, request.suites or default_names(config), request.limit)
    suites = [with_samples(suite, request.samples, temperature(request)) for suite in wanted.suites]
    for line in wanted.remarks:
        console.print(line, highlight=False, soft_wrap=True)
    if not suites:
        raise UserError("no suite is left to play")
    began = time.monotonic()
    with deployed(config, f"{config.run.name}-eval-{os.getpid()}", training=False) as deployment:
        saves = [_writer(folder, config, ref.version) for folder, ref in zip(folders, refs, strict=True)]
        evaluations = asyncio.run(_play(config, deployment, refs, suites, saves))
    for evaluation in evaluations:
        print_evaluation(console, f"of {evaluation.adapter}", evaluation)
    content = as_json(evaluations[0])
    if len(evaluations) == 2:
        print_paired(console, *evaluations)
        content |= {"against": as_json(evaluations[1]), "paired": paired_rows(*evaluations)}
    console.print(f"{time.monotonic() - began:.1f} s", highlight=False)
    if request.json_file is not None:
        write_json(request.json_file, content)


async def _play(
    config: Config,
    deployment: Deployment,
    refs: Sequence[AdapterRef],
    suites: Sequence[Suite],
    saves: Sequence[Save],
) -> list[Evaluation]:
    hosts = Hosts(deployment, config, deployment.keyring.door(deployment.controller))
    replicas = Replicas(hosts, Recoveries())
    async with hosts.deaths(replicas.died):
        try:
            await replicas.open()
            evaluations = list[Evaluation]()
            for ref, save in zip(refs, saves, strict=True):
                with trace("evaluation", {"rl.policy_version": ref.version}):
                    await replicas.fleet.load(ref)
                    evaluations.append(await evaluate(replicas.fleet, config, ref, suites, save))
            return evaluations
        finally:
            await replicas.close()


def temperature(request: Request) -> float:
    """As asked, else greedy for one episode a task and 1 for several.

    Raises:
        UserError: several greedy episodes of a task are asked for: they would all be the same.
    """
    if request.samples > 1 and request.temperature == 0:
        raise UserError("--samples above 1 needs a --temperature above 0: greedy episodes of a task are all the same")
    if request.temperature is not None:
        return request.temperature
    return 1.0 if request.samples > 1 else 0.0


def resolve(config: Config, adapter: str) -> AdapterRef:
    """The adapter that `none`, `latest` or a version (of the recipe's store) or a published folder's URL means.

    Raises:
        UserError: there is no such run, or the folder holds no adapter.
        NotFound, DataCorrupt: nothing whole is published there.
    """
    if adapter == "none":
        return AdapterRef(0, "", "", "the base model", "", 0)
    if adapter == "latest" or adapter.isdecimal():
        known_run(config)
    if adapter == "latest":
        return latest(config.checkpoint.url).ref
    if adapter.isdecimal():
        store = VersionStore(config.checkpoint.url)
        if found := store.find(PublishKind.ADAPTER, int(adapter)):
            return found.ref
        kept = ", ".join(map(str, store.versions(PublishKind.ADAPTER))) or "none"
        raise NotFound(f"{config.checkpoint.url} has no adapter of version {adapter}; there are: {kept}")
    manifest = read_manifest(absolute(adapter))
    if manifest.kind is not PublishKind.ADAPTER:
        raise UserError(f"{adapter}: holds a published {manifest.kind}; name a folder below adapters/")
    return manifest.ref(absolute(adapter))


def _folders(request: Request) -> list[Path | None]:
    """Where each adapter's episodes go.

    Raises:
        UserError: there are episodes already.
    """
    names = ("adapter", "against") if request.against else ("",)
    folders = [request.save / name if request.save else None for name in names]
    for folder in folders:
        if folder and (folder / INDEX).exists():
            raise UserError(f"--save {folder}: holds episodes already; choose another folder")
    return folders


def _writer(folder: Path | None, config: Config, version: int) -> Save:
    spell = speller(config)

    def save(suite: Suite, groups: Sequence[TrajectoryGroup]) -> None:
        if folder:
            write_groups(folder, groups, Beside(Label(suite.name, version, suite.temperature), spell=spell))

    return save
