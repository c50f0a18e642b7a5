"""Does Tandem work on this machine's GPU? `make gpu-check PROFILE=gpu`. Exits 2 without a GPU, 1 on a failure.

The demo's tiny model in float32, all services on one GPU, without Ray: play, learn, publish, load, play again under the
new version. Checked: every episode ends by itself, engine and learner agree on the sampled tokens' logprobs (through an
adapter that is not zero, too), sleeping frees the engine's memory and waking brings the same policy back.
`--cpu` runs the same on CPUs, where sleeping frees nothing: it checks this script.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

import tandem_checkpoint_manager.main
import tandem_learner.main
import tandem_rollout.main
from tandem.config import Config, load_recipe
from tandem.rpc.clients import CheckpointClient, LearnerClient, RolloutClient
from tandem.types import Identity, Member, Role, TandemError
from tandem_controller.fleet import Fleet
from tandem_controller.journal import Position
from tandem_controller.loop import Stopwatch, distribute, make_version, start
from tandem_controller.past import Past
from tandem_controller.pipeline import Pipeline, learned, open_journal, training_task
from tandem_controller.recording import recording
from tandem_controller.run_dir import RunDir
from tandem_controller.services import Services

ROOT = Path(__file__).resolve().parent.parent
AGREE = 1e-3  # nats; engine and learner run different float32 kernels
STEPS = 2
GIB = 2**30


def config_of(store: str, gpus: int) -> Config:
    """The demo's recipe, made small: whole transcripts with all images, every group kept."""
    small = {
        "model.path": ROOT / "models/tiny-qwen3vl",
        "run.steps": STEPS,
        "env.window": 0,
        "rollout.replicas": 1,
        "rollout.groups_per_step": 8,
        "rollout.engine.max_model_len": 1024,
        "rollout.engine.gpu_memory_utilization": 0.3,
        "learner.algo.drop_zero_variance": "false",
        "checkpoint.url": store,
        "cluster.gpus": gpus,
    }
    return load_recipe(ROOT / "deploy/recipes/maze2d-cpu.yaml", [f"{key}={value}" for key, value in small.items()])


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


async def greedy(services: Services, config: Config, position: Position) -> list[tuple[int, ...]]:
    """Greedy completions of four groups under the version that is served, turn by turn."""
    task = training_task(config, position.version, [position.next_seed + index for index in range(4)])
    task = replace(task, sampling=replace(task.sampling, temperature=0.0))
    groups = await services.fleet.play(task)
    return [turn.completion_ids for group in groups for episode in group.trajectories for turn in episode.turns]


def require(holds: bool, claim: str) -> None:
    """Print the claim, or raise TandemError with it."""
    if not holds:
        raise TandemError(f"FAILED: {claim}")
    print(f"ok: {claim}", flush=True)


async def check(config: Config, run: RunDir) -> None:
    """All checks. Raises TandemError at the first that fails."""
    began = time.perf_counter()
    async with serving(config) as services:
        require(True, f"services up in {time.perf_counter() - began:.0f} s")
        journal = open_journal(config, run.path)
        position = await start(services, config, Past(), partial(learned, journal))
        async with (
            Pipeline(services.fleet, config, run, position) as pipeline,
            recording(run.path, config, position.version) as recorder,
        ):
            for version in range(STEPS):  # the first adapter is zero: the second step goes through a real one
                row = await make_version(services, pipeline, version, recorder, Stopwatch())
                position = pipeline.position(row["version"])
                await distribute(services, position.version, Stopwatch())
                require(row["rollout/failed_episodes"] == 0, f"{row['rollout/turns']} turns, no episode failed")
                gap = row["rollout_learner_logprob_gap_max"]
                require(0 < gap < AGREE, f"engine and learner agree within {gap:.1e} nats, version {position.version}")
        await check_sleep(services, config, position)


async def check_sleep(services: Services, config: Config, position: Position) -> None:
    """Sleep, wake, and play as before."""
    before = await greedy(services, config, position)
    if config.cluster.gpus:
        awake = torch.cuda.mem_get_info()[0]
        await services.fleet.sleep()
        freed = (torch.cuda.mem_get_info()[0] - awake) / GIB
        require(freed > 1, f"sleeping frees {freed:.1f} GiB of the GPU's memory")
    else:
        await services.fleet.sleep()
    await services.fleet.wake()
    after = await greedy(services, config, position)
    same = sum(left == right for left, right in zip(before, after, strict=False)) / max(len(before), len(after))
    require(same > 0.99, f"after waking {same:.1%} of greedy completions are as before")


def main() -> int:
    """The exit code."""
    on_cpu = sys.argv[1:] == ["--cpu"]
    if not (on_cpu or torch.cuda.is_available()):
        print("gpu-check: PyTorch finds no NVIDIA GPU here; nothing was checked", file=sys.stderr)
        return 2
    print(f"on {'CPUs' if on_cpu else torch.cuda.get_device_name()}, torch {torch.__version__}", flush=True)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as store:
        try:
            asyncio.run(check(config_of(store, gpus=0 if on_cpu else 1), RunDir(Path(store))))
        except TandemError as problem:
            print(f"gpu-check: {problem}", file=sys.stderr)
            return 1
    print(f"gpu-check: all of it works, in {time.perf_counter() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
