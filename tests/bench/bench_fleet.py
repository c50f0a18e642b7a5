"""Throughput against the number of rollout replicas, with simulated engines, and what a group costs the controller.

Fleet and Pipeline, gRPC and the replicas' service are real; an engine's request takes a log-normal time, as turns of an
8B model might: median 1 s, standard deviation of its logarithm 0.5. All replicas lie in two processes on this machine,
so its cores bound the sum of what they, and the controller, need: `busy` is how much of a core the controller took.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from pathlib import Path

import pytest

from tandem.config import Config
from tandem_controller.pipeline import Pipeline, Position
from tandem_controller.run_dir import RunDir
from tests.bench.rehearsal import ROOT, fleet_at, hosts
from tests.bench.report import show

REPLICAS = [int(number) for number in os.environ.get("FLEET_REPLICAS", "1,2,4,8,16,32,64").split(",")]
REPEATS = int(os.environ.get("FLEET_REPEATS", "2"))
SECONDS = float(os.environ.get("FLEET_SECONDS", "30"))
SEATS, SIZE = 8, 4


def config(env: str, model: str, **engine: object) -> Config:
    return Config.model_validate(
        {
            "model": {"path": str(ROOT / "models" / model)},
            "env": {"id": env, "window": 1, **({"max_turns": 4} if engine else {})},
            "rollout": {
                "group_size": SIZE,
                "max_concurrent_episodes": SEATS,
                "max_tokens": 12,
                "engine": {"kind": "simulated", "max_num_seqs": 1024, "simulated": engine},
            },
        }
    )


async def rate(wanted: Config, addresses: tuple[str, ...], seconds: float, folder: Path) -> tuple[float, float, float]:
    """Turns a second in a steady state, CPU seconds of the controller a group, and its share of a core."""
    turns = groups = 0

    def came(group) -> None:
        nonlocal turns, groups
        groups += 1
        turns += sum(len(trajectory.turns) for trajectory in group.trajectories)

    async with (
        fleet_at(wanted, addresses) as fleet,
        Pipeline(fleet, wanted, RunDir(folder), Position(0, 0), came) as line,
    ):
        count = 4 * len(addresses) * wanted.rollout.max_concurrent_episodes // wanted.rollout.group_size

        async def steps() -> None:
            while True:
                await line.refill(0, count)

        playing = [asyncio.ensure_future(steps()) for _ in range(2)]  # one step ahead, so that no replica waits
        try:
            await asyncio.wait(playing, timeout=10)  # the first episodes have not ended yet
            turns = groups = 0
            began, cpu = time.perf_counter(), time.process_time()
            await asyncio.wait(playing, timeout=seconds)
            wall, cpu = time.perf_counter() - began, time.process_time() - cpu
            return turns / wall, cpu / max(1, groups), cpu / wall
        finally:
            for play in playing:
                play.cancel()
            await asyncio.gather(*playing, return_exceptions=True)


@pytest.mark.timeout(3600)
async def test_throughput_against_replicas(tmp_path: Path) -> None:
    wanted = config("sort:5", "tiny-sort", turn_s=1.0, spread=0.5)
    rates: dict[int, list[float]] = {number: [] for number in REPLICAS}
    busy: dict[int, list[float]] = {number: [] for number in REPLICAS}
    load = os.getloadavg()[0]
    async with hosts(wanted, [max(REPLICAS) // 2, max(REPLICAS) - max(REPLICAS) // 2]) as (first, second):
        mixed = [address for pair in zip(first.addresses, second.addresses, strict=False) for address in pair]
        addresses = tuple(mixed or second.addresses)
        for repeat in range(REPEATS):
            for number in REPLICAS:
                folder = tmp_path / f"{repeat}-{number}"
                folder.mkdir()
                seconds = SECONDS * max(1, 4 // number)  # few replicas end few groups in a time
                turns, _, share = await rate(wanted, addresses[:number], seconds, folder)
                rates[number].append(turns)
                busy[number].append(share)
    one = statistics.median(rates[REPLICAS[0]]) / REPLICAS[0]
    show(
        f"turns/s of each replica, load {load:.0f} at the start, {os.getloadavg()[0]:.0f} at the end",
        "turns/s",
        {f"{number} replicas": [value / number for value in values] for number, values in rates.items()},
    )
    for number in REPLICAS:
        middle = statistics.median(rates[number])
        print(f"{number:3d} replicas: {middle:7.1f} turns/s, efficiency {middle / number / one:.2f}", end="")
        print(f", controller busy {statistics.median(busy[number]):.2f} of a core")


@pytest.mark.timeout(600)
async def test_what_a_group_costs_the_controller(tmp_path: Path) -> None:
    """As fast as replicas can: groups of 8 in mazes, with pictures, and of 8 in a game of text."""
    for env, model in (("maze2d:tiny", "tiny-qwen3vl"), ("sort:5", "tiny-sort")):
        made = config(env, model).model_dump()
        made["rollout"] |= {"group_size": 8, "max_concurrent_episodes": 64}
        wanted = Config.model_validate(made)
        folder = tmp_path / model
        folder.mkdir()
        async with hosts(wanted, [1, 1]) as (first, second):
            turns, cpu, share = await rate(wanted, first.addresses + second.addresses, SECONDS / 2, folder)
        print(f"{env}: {1000 * cpu:.1f} ms of CPU a group of 8 in the controller, so {1 / cpu:.0f} groups/s at most;")
        print(f"  measured at {turns:.0f} turns/s, the controller busy {share:.2f} of a core")
