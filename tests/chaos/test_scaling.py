"""`tandem scale` on a job that runs: replicas come and play, others leave, the learner re-shards; nothing is lost."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from safetensors.torch import load

from tandem.config import load_recipe
from tandem.rpc.clients import RolloutClient
from tandem.rpc.keyring import operator_door
from tandem.types import Member, Role, RunStatus
from tests.chaos.rehearsal import WELL_S, Rehearsal
from tests.chaos.settings import SETTINGS, TURNS
from tests.chaos.verdict import whole
from tests.e2e.crashes import Run, tensors

THREE = (*SETTINGS, "rollout.replicas=3", "eval.fixed=0")
ADAPTER = "adapters/v{:08d}/adapter_model.safetensors"


def replica(status: RunStatus, index: int) -> Member | None:
    found = [m for m in status.members if m.member.identity.role is Role.ROLLOUT and m.member.identity.index == index]
    return found[0].member if found and found[0].state == "serving" else None


async def played(run: Rehearsal, member: Member) -> int:
    """Episodes that a replica has played, as it says itself."""
    door = operator_door(load_recipe(run.folder / "config.yaml").security, run.folder)
    client = RolloutClient(member.address, door, member.identity)
    try:
        return (await client.status()).episodes_done
    finally:
        await client.close()


async def scaled(run: Rehearsal) -> None:
    """Rollouts 3 -> 1 -> 3, learner 2 -> 1 -> 2."""
    run.replicas = 3
    await run.well()
    await run.scale(rollout=1)
    run.replicas = 1
    await run.well()  # the two others have left
    await run.scale(rollout=3)
    run.replicas = 3
    back = await run.until(lambda now: replica(now, 2) is not None, WELL_S)
    assert back and (newcomer := replica(back, 2)) and newcomer.identity.generation == 2
    assert await run.until(lambda now: now.version > back.version + 1, WELL_S)  # one was under way, the next is its
    assert await played(run, newcomer) > 0
    await run.scale(learner=1)
    run.ranks = 1
    alone = await run.well()
    assert await run.until(lambda now: now.version > alone.version, WELL_S)
    await run.scale(learner=2)
    run.ranks = 2
    both = await run.well()
    assert await run.until(lambda now: now.version > both.version, WELL_S)
    await run.disconnect()


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_is_scaled_while_it_runs(tmp_path: Path) -> None:
    run = Rehearsal(tmp_path / "scaled", None, *THREE, *TURNS, "run.steps=100000", restarts=0)
    try:
        asyncio.run(scaled(run))
        assert run.stop() == 0, run.run.said()[-6000:]
        assert not run.run.left()
    finally:
        run.run.kill()
    steps = whole(tmp_path / "scaled")
    alone, both = (int(version) for version in re.findall(r"goes on with \d ranks from version (\d+)", run.run.said()))
    assert 0 < alone < both < steps
    twin = Run(tmp_path / "twin", *THREE, f"run.steps={alone + 1}")
    try:
        assert twin.wait(600) == 0, twin.said()[-6000:]
    finally:
        twin.kill()
    mine, other = tensors(tmp_path / "scaled"), tensors(tmp_path / "twin")
    for version in range(1, alone + 1):  # whoever was there to play, the bytes are the same
        assert mine[ADAPTER.format(version)] == other[ADAPTER.format(version)], version
    near, far = load(mine[ADAPTER.format(alone + 1)]), load(other[ADAPTER.format(alone + 1)])
    for name, value in near.items():  # one rank sums in another order than two
        assert abs(value - far[name]).max() < 1e-4, name
