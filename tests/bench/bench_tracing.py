"""What tracing costs a step: the demo's, with real vLLM, learner and checkpoint manager, traced and not in turn.

All services are in this process, so that every span of a step is made, encoded and sent by one interpreter; a step that
is traced ends when the collector, a process of its own, has its last span.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

import tandem_checkpoint_manager.main
import tandem_learner.main
import tandem_rollout.main
from tandem.config import Config, load_recipe
from tandem.envs import tasks
from tandem.obs import span
from tandem.obs.exporting import begin
from tandem.obs.process import detail_share
from tandem.rpc.clients import CheckpointClient, LearnerClient, RolloutClient
from tandem.types import Identity, Member, PublishKind, Role
from tandem_controller.fleet import Fleet
from tandem_controller.loop import learn, start
from tandem_controller.past import Past
from tandem_controller.pipeline import learned, open_journal, training_task
from tandem_controller.run_dir import RunDir
from tandem_controller.services import Services, publish
from tandem_controller.step_trace import step_trace
from tests.bench.report import show

ROOT = Path(__file__).parents[2]
REPEATS = 20
SPANS = 2000
ASKED = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m", "gen_ai.request.max_tokens": 16, "rl.turn": 3}
SMALL = {
    "model.path": ROOT / "models/tiny-qwen3vl",
    "run.steps": 2 * REPEATS + 2,
    "rollout.max_staleness": 1000,
    "rollout.replicas": 1,
    "rollout.groups_per_step": 16,
    "learner.world_size": 1,
}


@asynccontextmanager
async def serving(config: Config) -> AsyncIterator[Services]:
    """All services in this process; the engine has its own."""
    running = []
    try:
        for module in (tandem_checkpoint_manager.main, tandem_learner.main, tandem_rollout.main):
            running.append(await module.start(config))
        checkpoint, learner, rollout = (service.address for service in running)
        fleet = Fleet(config.rollout, config.model.probe_tolerance, lambda member: RolloutClient(member.address))
        await fleet.admit(Member(Identity(Role.ROLLOUT), rollout))
        client = LearnerClient(learner)
        status = await client.status()
        yield Services(fleet, client, CheckpointClient(checkpoint), status.adapter_config_json, status.base_model)
    finally:
        for service in reversed(running):
            await service.stop()


def nothing() -> None:
    return


@pytest.fixture
def collector() -> Iterator[subprocess.Popen[str]]:
    """A receiver in a process of its own: it prints its URL, and at the end how many spans came."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.otlp"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        yield process
        if process.poll() is None:
            process.communicate()


@pytest.mark.vllm
@pytest.mark.timeout(1800)
async def test_a_step_traced_and_not(tmp_path: Path, collector: subprocess.Popen[str]) -> None:
    over = [f"{key}={value}" for key, value in SMALL.items()]
    config = load_recipe(ROOT / "deploy/recipes/maze2d-cpu.yaml", [*over, f"checkpoint.url={tmp_path}/store"])
    run = RunDir(tmp_path)
    assert collector.stdout is not None
    url = collector.stdout.readline().strip()
    seconds: dict[str, list[float]] = {"not traced": [], "traced": []}
    async with serving(config) as services:
        position = await start(services, config, Past(), partial(learned, open_journal(config, run.path)))
        seeds = tasks.seeds(config.env.id, "train", config.rollout.groups_per_step, position.next_seed)
        task = training_task(config, 0, seeds)  # the same episodes each time: the replica stays at version 0
        for version in range(2 * REPEATS + 2):
            side = ("not traced", "traced", "traced", "not traced")[version % 4]
            finish: Callable[[], None] = nothing
            if side == "traced":
                finish = begin(url, detail_share(config), {"service.name": "tandem-all"})
            began = time.perf_counter()
            with step_trace(run, version):
                with span("generate"):
                    groups = await services.fleet.play(task)
                with span("train"):
                    await learn(services, version, groups)
                with span("sync"):
                    await publish(services, PublishKind.ADAPTER, version + 1)
            finish()
            if version >= 2:  # the first of each warms up
                seconds[side].append(1000 * (time.perf_counter() - began))
    told, _ = collector.communicate()
    show("a step of 16 groups of 8", "ms", seconds)
    plain, traced = (statistics.median(values) for values in seconds.values())
    spans = int(told.strip()) / (REPEATS + 1)
    print(f"a step with {spans:.0f} spans takes {traced / plain - 1:+.1%}; how widely steps spread, see above")


def test_what_a_span_costs(collector: subprocess.Popen[str]) -> None:
    """CPU of making, encoding and sending one, as a completion's: finer than the spread of steps shows."""
    assert collector.stdout is not None
    url = collector.stdout.readline().strip()
    sides: dict[str, list[float]] = {"not traced": [], "traced": []}
    for repeat in range(2 * REPEATS):
        side = list(sides)[repeat % 2]
        finish = begin(url, 1.0, {"service.name": "tandem-all"}) if side == "traced" else nothing
        began = time.process_time()
        for number in range(SPANS):
            with span("chat", ASKED) as asked:
                asked.set({"gen_ai.usage.input_tokens": number, "gen_ai.response.finish_reasons": ["stop"]})
        finish()
        sides[side].append(1e6 * (time.process_time() - began) / SPANS)
    show("a span", "us of CPU", sides)
