"""Ranks as real processes over real gRPC, with a real checkpoint manager."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from episodes import play_groups
from processes import Learner, deaf_peer, learner, service
from safetensors.torch import load_file

from tandem.algo import pack, select_groups
from tandem.rpc.clients import CheckpointClient
from tandem.runtime import until
from tandem.types import AdapterRef, PublishKind, TrajectoryGroup, Unavailable
from tandem_learner.forward import plan_rounds
from tandem_learner.random_state import RANDOM

VISION = r".*(language_model.*\.(q_proj|v_proj|down_proj)|visual.*\.(qkv|linear_fc1|linear_fc2))"
LORA = {"rank": 6, "alpha": 12, "vision": True, "target_modules": VISION}  # 6 rows: uneven over 4 ranks

BUDGET = 200  # tokens of a microbatch
WITHIN_S = 120.0


@dataclass(frozen=True)
class Bench:
    """A recipe, groups that fit it, and a checkpoint manager."""

    recipe: str
    groups: list[TrajectoryGroup]
    manager: CheckpointClient

    async def save(self, at: Learner, version: int) -> tuple[AdapterRef, AdapterRef]:
        """Export and publish adapter and state of a version."""
        status = await at.client.status()
        refs = []
        for kind in (PublishKind.ADAPTER, PublishKind.STATE):
            shards = await at.client.export(version, kind, self.manager.peer.address)
            assert [shard.rank for shard in shards] == list(range(status.world_size))
            refs.append(
                await self.manager.publish(
                    kind,
                    version,
                    world_size=status.world_size,
                    base_model=status.base_model,
                    adapter_config_json=status.adapter_config_json,
                )
            )
        return refs[0], refs[1]


def write_recipe(folder: Path, model: Path, **learner_settings: object) -> str:
    tree = {
        "model": {"path": str(model)},
        "run": {"dir": str(folder), "steps": 10},
        "rollout": {"group_size": 4},
        "learner": {"lr": 1e-3, "lora": LORA, "microbatch_tokens": BUDGET, **learner_settings},
        "checkpoint": {"url": str(folder / "store"), "keep": 10},
        "security": {"adapters_from": ["/"]},
    }
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(tree))
    return str(path)


def _adapter(ref: AdapterRef) -> dict[str, torch.Tensor]:
    return load_file(Path(ref.url.removeprefix("file://")) / "adapter_model.safetensors")


def _state(ref: AdapterRef) -> dict[str, torch.Tensor]:
    return load_file(Path(ref.url.removeprefix("file://")) / "training_state.safetensors")


def _largest_difference(left: Mapping[str, torch.Tensor], right: Mapping[str, torch.Tensor]) -> float:
    assert set(left) == set(right)
    return max(float((left[name] - right[name]).abs().max()) for name in left)


def _microbatches_of(groups: Sequence[TrajectoryGroup], world_size: int) -> list[int]:
    """How many microbatches each rank has."""
    kept, _ = select_groups(groups, drop_zero_variance=True)
    members = [trajectory.turns for group in kept for trajectory in group.trajectories]
    packed, _ = pack(members)
    plans = [plan_rounds(packed.sequences, rank, world_size, BUDGET) for rank in range(world_size)]
    return [len(mine) for mine, _ in plans]


async def _train(at: Learner, groups: Sequence[TrajectoryGroup], versions: range) -> None:
    for version in versions:
        result = await at.client.train_step(version, groups)
        assert result.policy_version == version + 1
        assert result.metrics["skipped_updates"] == 0


async def test_one_and_two_ranks_agree_and_continue_each_other(tiny_model: Path, tmp_path: Path) -> None:
    """Two steps at one and at two ranks; the two ranks' state continued at one and at two ranks."""
    recipe = write_recipe(tmp_path, tiny_model)
    short = play_groups(tiny_model, groups=3, group_size=4, max_turns=4)
    whole = play_groups(tiny_model, groups=2, group_size=4, max_turns=4, window=0, start=1000)
    groups = [*short, *whole]
    assert len(set(_microbatches_of(groups, 2))) == 2  # so that one rank idles through a round or two
    two, one = tmp_path / "two", tmp_path / "one"
    async with (
        service("tandem_checkpoint_manager", recipe, f"checkpoint.url={two}") as (_, address_two),
        service("tandem_checkpoint_manager", recipe, f"checkpoint.url={one}") as (_, address_one),
    ):
        at_two = Bench(recipe, groups, CheckpointClient(address_two))
        at_one = Bench(recipe, groups, CheckpointClient(address_one))
        async with learner(recipe, 2) as pair:
            await _train(pair, groups, range(2))
            saved, state = await at_two.save(pair, 2)
            await _train(pair, groups, range(2, 3))
            uninterrupted, _ = await at_two.save(pair, 3)
            # the same ranks, put back to the state and forward again: bitwise the same
            assert await pair.client.restore(saved, state) == 2
            await _train(pair, groups, range(2, 3))
            await pair.client.export(3, PublishKind.ADAPTER, address_two)
            status = await pair.client.status()
            # publishing other bytes under a published version would be refused
            again = await at_two.manager.publish(
                PublishKind.ADAPTER,
                3,
                world_size=2,
                base_model=status.base_model,
                adapter_config_json=status.adapter_config_json,
            )
            assert again == uninterrupted
        async with learner(recipe, 1) as single:
            await _train(single, groups, range(2))
            alone, _ = await at_one.save(single, 2)
            assert _largest_difference(_adapter(alone), _adapter(saved)) < 1e-5
            assert await single.client.restore(saved, state) == 2
            await _train(single, groups, range(2, 3))
            continued, _ = await at_one.save(single, 3)
        assert _largest_difference(_adapter(continued), _adapter(uninterrupted)) < 1e-6
        assert _largest_difference(_adapter(saved), _adapter(uninterrupted)) > 1e-4
        await at_two.manager.close()
        await at_one.manager.close()


async def test_a_state_saved_at_any_world_size_loads_at_any(tiny_model: Path, tmp_path: Path) -> None:
    """Saved at 1, 2 and 3 ranks, each loaded at 1, 2 and 3, and saved again from there: the same bits. And a run of two
    ranks that goes on at one and then at three learns what it would have learned."""
    recipe = write_recipe(tmp_path, tiny_model)
    groups = play_groups(tiny_model, groups=2, group_size=4, max_turns=2)
    sizes = (1, 2, 3)
    async with AsyncExitStack() as stack:
        _, address = await stack.enter_async_context(service("tandem_checkpoint_manager", recipe, "checkpoint.keep=20"))
        bench = Bench(recipe, groups, CheckpointClient(address))
        stack.push_async_callback(bench.manager.close)
        ranks = {n: await stack.enter_async_context(learner(recipe, n)) for n in sizes}
        saved = {}
        for n in sizes:
            await _train(ranks[n], groups, range(n))
            saved[n] = await bench.save(ranks[n], n)
        moments = 2 * 4 * (await ranks[1].client.status()).trainable_parameters
        for n, (adapter, state) in saved.items():
            was = _state(state)
            assert 0 <= sum(t.nbytes for t in was.values()) - moments < 8192 * n  # two float32 moments, and a little
            for m in sizes:
                version = 10 * n + m
                await ranks[m].client.restore(replace(adapter, version=version), replace(state, version=version))
                adapter_again, state_again = await bench.save(ranks[m], version)
                assert _largest_difference(_adapter(adapter_again), _adapter(adapter)) == 0
                now = _state(state_again)
                assert {name for name in now if name.startswith(RANDOM)} == {f"{RANDOM}cpu/{r}" for r in range(m)}
                for name in set(was) | set(now):
                    if not name.startswith(RANDOM) or int(name.rpartition("/")[2]) < min(n, m):
                        assert torch.equal(was[name], now[name]), name

        async def onward(n: int, refs: tuple[AdapterRef, AdapterRef], versions: range) -> tuple[AdapterRef, AdapterRef]:
            """From saved folders, taken for version `versions[0]`, so many steps with n ranks."""
            adapter, state = (replace(ref, version=versions[0]) for ref in refs)
            await ranks[n].client.restore(adapter, state)
            await _train(ranks[n], groups, versions)
            return await bench.save(ranks[n], versions[-1] + 1)

        straight, _ = await onward(2, saved[2], range(40, 42))
        resized, _ = await onward(3, await onward(1, saved[2], range(50, 51)), range(51, 52))
        assert _largest_difference(_adapter(resized), _adapter(straight)) < 1e-5
        assert _largest_difference(_adapter(straight), _adapter(saved[2][0])) > 1e-4


EVERYTHING = {
    "advantage": "reinforce_pp",
    "loss": "gspo",
    "ratio": "learner",
    "aggregation": "seq_mean_token_mean",
    "correction": {"kind": "truncate", "level": "sequence"},
    "kl": {"coef": 0.05, "estimator": "k3", "place": "reward"},
    "entropy_coef": 0.01,
}


async def test_three_ranks_agree_with_one_on_everything_at_once(tiny_model: Path, tmp_path: Path) -> None:
    """Passes without gradients, too, with a trained tower, and ranks that idle: two steps of two updates."""
    recipe = write_recipe(tmp_path, tiny_model, algo=EVERYTHING, minibatches=2)
    groups = play_groups(tiny_model, groups=4, group_size=4, max_turns=3)
    found = []
    for world_size in (1, 3):
        url = f"checkpoint.url={tmp_path / str(world_size)}"
        async with service("tandem_checkpoint_manager", recipe, url) as (_, address):
            bench = Bench(recipe, groups, CheckpointClient(address))
            async with learner(recipe, world_size) as ranks:
                await _train(ranks, groups, range(2))
                found.append(_adapter((await bench.save(ranks, 2))[0]))
            await bench.manager.close()
    assert _largest_difference(*found) < 1e-5


async def _train_past_a_slow_rank(trio: Learner, groups: list[TrajectoryGroup]) -> None:
    """A step in which a rank stands still for a while: the learner says whom it waits for."""

    async def named() -> bool | None:
        waits = (await trio.client.status()).activity.waits
        return True if any(wait.startswith("learner rank 1: Train, for") for wait in waits) else None

    trio.ranks[1].send_signal(signal.SIGSTOP)
    training = asyncio.create_task(trio.client.train_step(0, groups))
    try:
        assert await until(named, every_s=0.02, for_s=60)
    finally:
        trio.ranks[1].send_signal(signal.SIGCONT)
    assert (await training).policy_version == 1
    assert (await trio.client.status()).activity.work > 0


async def test_a_dead_rank_is_named_and_no_rank_outlives_it(tiny_model: Path, tmp_path: Path) -> None:
    """In the middle of an export, and of a step; nothing waits for the deadline of a collective."""
    recipe = write_recipe(tmp_path, tiny_model)
    groups = play_groups(tiny_model, groups=3, group_size=4, max_turns=3)
    async with learner(recipe, 3) as trio, deaf_peer() as (deaf, called):
        await _train_past_a_slow_rank(trio, groups)
        sending = asyncio.create_task(trio.client.export(1, PublishKind.STATE, deaf))
        await called.wait()
        training = asyncio.create_task(trio.client.train_step(1, groups))
        trio.ranks[1].kill()
        calls: list[asyncio.Task[Any]] = [training, sending]
        for call in calls:
            with pytest.raises(Unavailable, match="learner rank 1 is lost: its process ended; all ranks must be"):
                await asyncio.wait_for(call, WITHIN_S)
        assert [await asyncio.wait_for(trio.ranks[rank].wait(), WITHIN_S) for rank in (0, 2)] == [1, 1]


async def test_a_rank_that_stands_still_is_lost(tiny_model: Path, tmp_path: Path) -> None:
    """Alive, and silent: its connections stay open. The other one ends; so does it, once it wakes."""
    recipe = write_recipe(tmp_path, tiny_model, heartbeat_s=5)
    async with learner(recipe, 2) as pair:
        pair.ranks[0].send_signal(signal.SIGSTOP)
        try:
            assert await asyncio.wait_for(pair.ranks[1].wait(), WITHIN_S) == 1
        finally:
            pair.ranks[0].send_signal(signal.SIGCONT)
        with pytest.raises(Unavailable, match="learner"):
            await pair.client.snapshot(0, PublishKind.STATE)
        assert await asyncio.wait_for(pair.ranks[0].wait(), WITHIN_S) == 1
