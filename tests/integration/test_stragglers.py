"""A slow replica's groups are begun elsewhere as well, and what is learned from is what it would have been without it:
the same episodes, long ones as often. A quorum of what ends first would be of shorter ones."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from statistics import fmean

from tests.bench.rehearsal import ROOT
from tests.members import numbered

from tandem import envs
from tandem.config import Config
from tandem.rpc.clients import RolloutClient
from tandem.types import AdapterRef, ContextPolicy, RolloutTask, Sampling, TrajectoryGroup
from tandem_controller.fleet import Fleet
from tandem_rollout.main import start

SEEDS = tuple(envs.seeds("sort:4", "train", 32))
TASK = RolloutTask("sort:4", SEEDS, 2, 0, Sampling(max_tokens=12), ContextPolicy(1), 8, 11)
BASE = AdapterRef(0, "", "", "the base model", "", 0)


def config(turn_s: float, straggler_s: float = 0.0) -> Config:
    engine = {"kind": "simulated", "simulated": {"turn_s": turn_s}}
    tree = {"straggler_s": straggler_s, "engine": engine}
    model = {"path": str(ROOT / "models/tiny-sort")}
    return Config.model_validate({"model": model, "env": {"id": "sort:4", "window": 1}, "rollout": tree})


async def played(straggler_s: float, turn_s: Sequence[float]) -> tuple[list[TrajectoryGroup], list[int], float]:
    """All groups by seed, the seeds as their groups came, and how many were begun twice; a replica for each time."""
    came: list[int] = []
    async with AsyncExitStack() as stack:
        services = [await start(config(seconds)) for seconds in turn_s]
        for service in services:
            stack.push_async_callback(service.stop)
        fleet = Fleet(config(0, straggler_s).rollout, 1e-3, lambda member: RolloutClient(member.address))
        stack.push_async_callback(fleet.close)
        for member in numbered([service.address for service in services]):
            await fleet.admit(member)
        await fleet.load(BASE)
        groups = await fleet.play(TASK, lambda group: came.append(group.seed))
        figures = fleet.figures()
        await fleet.sleep()  # what was cut off has ended, or it would refuse
        assert len(fleet.members) == len(turn_s)
    return [replace(group, seconds=0.0) for group in groups], came, figures["fleet/begun_twice"]


def lengths(groups: Sequence[TrajectoryGroup]) -> list[int]:
    return [len(trajectory.turns) for group in groups for trajectory in group.trajectories]


async def test_stragglers_change_neither_which_episodes_are_learned_from_nor_their_lengths() -> None:
    plain, came, twice = await played(0.0, [0.05, 0.05])
    assert not twice and len(set(lengths(plain))) > 3
    hedged, _, twice = await played(0.3, [0.5, 0.01])
    assert twice > 0
    assert hedged == plain
    by_seed = {group.seed: group for group in plain}
    quorum = lengths([by_seed[seed] for seed in came[: len(came) // 2]])
    print(f"mean turns: {fmean(lengths(plain)):.2f} of all, hedged or not; {fmean(quorum):.2f} of the first half")
    assert fmean(quorum) < fmean(lengths(plain))
