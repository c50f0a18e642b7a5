"""How far straggler copies favour short episodes where they are not the same: two draws, and the first to end counts.

Fleet, gRPC and two replicas with simulated engines, a seat for every episode; a request takes a log-normal time (median
0.7 s, with the slow one 0.9 s; standard deviation of its logarithm 0.5). Each engine has weights of its own, so that
copies part at the first turn: the most that can be, where rounding lets copies part late or never.
`rollout.straggler_s` is a quantile of what groups take without it; at last, next to nothing: every group is a race.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import pytest

from tandem import envs
from tandem.config import Config
from tandem.rpc.clients import RolloutClient
from tandem.runtime import until
from tandem.types import ContextPolicy, RolloutTask, Sampling, TrajectoryGroup
from tandem_controller.fleet import Fleet
from tandem_rollout.adapters import TENSORS
from tandem_rollout.engine import LocalAdapter
from tandem_rollout.main import RolloutService, start
from tests.bench.rehearsal import ROOT
from tests.members import numbered

EPISODES, TURNS = 384, 8  # a round
SIZES = (1, 4)
ROUNDS = int(os.environ.get("STRAGGLER_ROUNDS", "4"))
TURN_S = (0.7, 0.9)
QUANTILES = (0.95, 0.85, 0.7, 0.5)


def config(straggler_s: float, turn_s: float = 0) -> Config:
    return Config.model_validate(
        {
            "model": {"path": str(ROOT / "models/tiny-sort")},
            "env": {"id": "sort:4", "window": 1, "max_turns": TURNS},
            "rollout": {
                "max_concurrent_episodes": 2 * EPISODES,
                "straggler_s": straggler_s,
                "engine": {"kind": "simulated", "max_num_seqs": 4096, "simulated": {"turn_s": turn_s, "spread": 0.5}},
            },
        }
    )


async def parting(folder: Path, turn_s: float) -> RolloutService:
    """A replica whose answers are no other's."""
    service = await start(config(0, turn_s))
    await service.replica.engine.serve(LocalAdapter(0, folder.name, folder, folder.name, {}))
    return service


async def _idle(services: Sequence[RolloutService]) -> bool | None:
    return None if any(service.replica.status().episodes_running for service in services) else True


async def played(
    services: Sequence[RolloutService], size: int, straggler_s: float
) -> tuple[list[TrajectoryGroup], float]:
    """Groups of all rounds, and the share of them that was begun twice."""
    groups, twice = list[TrajectoryGroup](), 0.0
    fleet = Fleet(config(straggler_s).rollout, 1e-3, lambda member: RolloutClient(member.address))
    try:
        for member in numbered([service.address for service in services]):
            await fleet.admit(member)
        first = 0
        for _ in range(ROUNDS):
            seeds = tuple(envs.seeds("sort:4", "train", EPISODES // size, first))
            first = seeds[-1] + 1
            task = RolloutTask("sort:4", seeds, size, 0, Sampling(max_tokens=12), ContextPolicy(1), TURNS, 11)
            groups += await fleet.play(task)
            twice += fleet.figures()["fleet/begun_twice"]
            assert await until(partial(_idle, services), every_s=0.05, for_s=60)  # of copies that were cut off
    finally:
        await fleet.close()
    return groups, twice / len(groups)


def turns(groups: Sequence[TrajectoryGroup]) -> list[float]:
    """Mean turns of each group."""
    return [statistics.fmean(len(member.turns) for member in group.trajectories) for group in groups]


@pytest.mark.timeout(3600)
async def test_how_far_copies_that_part_favour_short_episodes(tmp_path: Path) -> None:
    weights = [tmp_path / "one", tmp_path / "other"]
    for folder in weights:
        folder.mkdir()
        (folder / TENSORS).write_text(folder.name)
    async with AsyncExitStack() as stack:
        services = [await parting(*each) for each in zip(weights, TURN_S, strict=True)]
        for service in services:
            stack.push_async_callback(service.stop)
        for size in SIZES:
            await _table(services, size)


async def _table(services: Sequence[RolloutService], size: int) -> None:
    plain, twice = await played(services, size, 0.0)
    assert not twice
    base, took = turns(plain), statistics.quantiles([group.seconds for group in plain], n=100)
    error = statistics.stdev(base) / len(base) ** 0.5
    print(f"\n{len(plain)} groups of {size} a row; standard error of a mean {error:.3f} turns", end="; ")
    print(f"load {os.getloadavg()[0]:.0f}\nbegun twice   turns an episode   of plain")
    print(f"{0:11.0%}  {statistics.fmean(base):17.2f}", flush=True)
    for after_s in (*(took[round(100 * quantile) - 1] for quantile in QUANTILES), 0.01):
        hedged, twice = await played(services, size, after_s)
        assert twice > 0 and len(hedged) == len(plain)
        mean = statistics.fmean(turns(hedged))
        print(f"{twice:11.0%}  {mean:17.2f}  {mean / statistics.fmean(base):9.3f}", flush=True)
