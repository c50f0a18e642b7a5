"""One rank in this process: what a step does to the adapter, and what it says of it."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from cores import (
    VISION,
    MakeCore,
    adapter_of,
    assert_same_gradients,
    gradients_of,
    in_float64,
    members_of,
    nudge,
    with_logprobs_of,
)
from episodes import play_groups
from torch.testing import assert_close

from tandem.algo import group_advantages, pack, return_table
from tandem.types import DataCorrupt, PublishKind, StopReason, TrajectoryGroup, Turn
from tandem_learner.forward import plan_rounds
from tandem_learner.host_copy import shard_file


@pytest.fixture(scope="module")
def groups(tiny_model: Path) -> list[TrajectoryGroup]:
    return play_groups(tiny_model, groups=6, group_size=4, window=1, max_turns=5)


def test_step_moves_the_adapter_and_the_version(make_core: MakeCore, groups: list[TrajectoryGroup]) -> None:
    core = make_core()
    before = adapter_of(core)
    metrics = core.train_step(groups)
    assert core.version == 1
    assert metrics["groups_used"] == 6
    assert metrics["updates"] == 1
    assert metrics["tokens"] == sum(
        len(turn.completion_ids) for g in groups for t in g.trajectories for turn in t.turns
    )
    assert 0 < metrics["rows_unique"] < metrics["rows_total"]
    assert metrics["images"] == len({name for g in groups for name in g.images if _shown(g, name)})
    assert metrics["lr"] == 1e-3
    assert all(math.isfinite(value) for value in metrics.values())
    assert any(not torch.equal(before[name], now) for name, now in adapter_of(core).items())


def _shown(group: TrajectoryGroup, name: str) -> bool:
    return any(name in turn.images for t in group.trajectories for turn in t.turns)


def test_on_policy_gap_is_zero_and_loss_is_minus_the_mean_advantage(
    make_core: MakeCore, groups: list[TrajectoryGroup]
) -> None:
    """With the learner's own logprobs as the rollout's, every ratio is 1 (up to rounding)."""
    core = make_core()
    own = with_logprobs_of(core, groups)
    metrics = core.train_step(own)
    assert metrics["rollout_learner_logprob_gap_max"] < 1e-5
    assert metrics["approx_kl"] < 1e-9
    assert metrics["clip_share"] == 0
    advantages = group_advantages("grpo", *return_table(own))[0].flatten().tolist()
    lengths = [sum(len(turn.completion_ids) for turn in t.turns) for g in own for t in g.trajectories]
    expected = -sum(a * n for a, n in zip(advantages, lengths, strict=True)) / sum(lengths)
    assert metrics["loss"] == pytest.approx(expected, abs=1e-6)


def test_identical_rows_once_give_the_gradient_of_all(make_core: MakeCore, groups: list[TrajectoryGroup]) -> None:
    """Sharing rows changes nothing: the sum over single trajectories, each packed alone, is the same gradient."""
    core = in_float64(make_core())
    nudge(core, 0)  # off the base policy, so that A has a gradient too
    turns, advantages = members_of(groups)
    together = gradients_of(core, turns, advantages, groups)
    total = sum(len(turn.completion_ids) for member in turns for turn in member)
    summed = {name: torch.zeros_like(gradient) for name, gradient in together.items()}
    for member, advantage in zip(turns, advantages, strict=True):
        for turn in member:
            alone = gradients_of(core, [[turn]], [advantage], groups)
            for name, gradient in alone.items():
                summed[name] += gradient * (len(turn.completion_ids) / total)
    assert_same_gradients(summed, together)


@pytest.mark.parametrize("vision", [False, True])
def test_microbatch_split_changes_nothing(make_core: MakeCore, groups: list[TrajectoryGroup], vision: bool) -> None:
    lora = {"rank": 8, "alpha": 16, **({"vision": True, "target_modules": VISION} if vision else {})}
    turns, advantages = members_of(groups)
    found = []
    for budget in (100_000, 200):
        core = in_float64(make_core(learner={"lora": lora, "microbatch_tokens": budget}))
        found.append(gradients_of(core, turns, advantages, groups))
    assert_same_gradients(*found)


def test_recomputed_activations_change_nothing(make_core: MakeCore, groups: list[TrajectoryGroup]) -> None:
    turns, advantages = members_of(groups)
    lora = {"rank": 8, "vision": True, "target_modules": VISION}
    found = [
        gradients_of(make_core(learner={"lora": lora, "activation_checkpointing": on}), turns, advantages, groups)
        for on in (False, True)
    ]
    for name, gradient in found[0].items():
        assert_close(gradient, found[1][name], rtol=1e-5, atol=1e-7)


def test_whole_transcripts_are_one_row_each(make_core: MakeCore, tiny_model: Path) -> None:
    whole = play_groups(tiny_model, groups=2, group_size=4, window=0, max_turns=6)
    metrics = make_core().train_step(whole)
    assert metrics["rows_total"] == 8
    assert metrics["tokens"] == sum(len(turn.completion_ids) for g in whole for t in g.trajectories for turn in t.turns)


def test_text_only_groups_leave_a_trained_tower_alone(make_core: MakeCore, groups: list[TrajectoryGroup]) -> None:
    """The tower runs all the same, so that ranks with and without images meet; its gradient is zero."""
    core = make_core(learner={"lora": {"rank": 8, "vision": True, "target_modules": VISION}})
    image_id = core.settings.image_id

    def text_only(turn: Turn) -> Turn:
        return replace(turn, images=(), prompt_ids=tuple(token for token in turn.prompt_ids if token != image_id))

    turns, advantages = members_of(groups)
    gradients = gradients_of(core, [[text_only(turn) for turn in member] for member in turns], advantages, groups)
    assert not any(gradient.any() for name, gradient in gradients.items() if ".visual." in name)
    assert any(gradient.any() for name, gradient in gradients.items() if ".language_model." in name)


def test_failed_trajectories_teach_nothing(make_core: MakeCore, groups: list[TrajectoryGroup]) -> None:
    """A failed member changes neither its group's baseline nor the loss: as if it had not been there."""
    with_failed = [
        replace(
            g,
            trajectories=(
                replace(g.trajectories[0], stop_reason=StopReason.ENGINE_ERROR),
                *g.trajectories[1:],
            ),
        )
        for g in groups
    ]
    without = [replace(g, trajectories=g.trajectories[1:]) for g in groups]
    cores = [make_core(), make_core()]
    first, second = cores[0].train_step(with_failed), cores[1].train_step(without)
    assert first["trajectories_used"] == second["trajectories_used"] == 3 * first["groups_used"]
    assert first["tokens"] == second["tokens"]
    assert cores[0].advantages == cores[1].advantages, "the failed members have none"
    for name, tensor in adapter_of(cores[0]).items():
        assert torch.equal(tensor, adapter_of(cores[1])[name])


def test_nothing_to_learn_still_makes_a_version(make_core: MakeCore, groups: list[TrajectoryGroup]) -> None:
    flat = [
        replace(
            g,
            trajectories=tuple(
                replace(t, turns=tuple(replace(turn, reward=0.0) for turn in t.turns)) for t in g.trajectories
            ),
        )
        for g in groups
    ]
    core = make_core()
    before = adapter_of(core)
    metrics = core.train_step(flat)
    assert (core.version, metrics["groups_dropped"], metrics["updates"], metrics["tokens"]) == (1, 6, 0, 0)
    assert all(torch.equal(before[name], now) for name, now in adapter_of(core).items())


def test_a_policy_lost_by_an_overflow_is_not_exported(make_core: MakeCore, groups: list[TrajectoryGroup]) -> None:
    core = make_core()
    core.train_step(groups)
    next(iter(core.policy.parameters.values())).local.view(-1)[0] = math.inf
    with pytest.raises(DataCorrupt, match=r"version 1 is lost, .*lora_A.* is not finite: nothing of it is published"):
        shard_file(core.snapshot(PublishKind.ADAPTER))


def test_loss_that_is_not_finite_skips_the_update(make_core: MakeCore, groups: list[TrajectoryGroup]) -> None:
    """A rollout logprob so low that the ratio overflows: the adapter stays, the skip is counted, the version moves."""
    broken = [
        replace(
            g,
            trajectories=tuple(
                replace(
                    t,
                    turns=tuple(
                        replace(turn, rollout_logprobs=(-200.0,) * len(turn.completion_ids)) for turn in t.turns
                    ),
                )
                for t in g.trajectories
            ),
        )
        for g in groups
    ]
    core = make_core()
    before = adapter_of(core)
    metrics = core.train_step(broken)
    assert metrics["skipped_updates"] == 1
    assert core.version == 1
    assert all(torch.equal(before[name], now) for name, now in adapter_of(core).items())
    assert core.train_step(groups)["skipped_updates"] == 0  # and the next one is whole again
    assert core.optimizer.skipped == 1


def test_minibatches_make_several_updates_of_one_version(make_core: MakeCore, groups: list[TrajectoryGroup]) -> None:
    core = make_core(learner={"minibatches": 3})
    metrics = core.train_step(groups)
    assert (core.version, metrics["updates"]) == (1, 3)
    assert float(core.optimizer.counters()["step/updates"]) == 3


def test_learning_rate_falls_with_the_version(make_core: MakeCore, groups: list[TrajectoryGroup]) -> None:
    core = make_core(learner={"lr": 1e-3, "lr_final": 0.1}, run={"steps": 3})
    assert [core.train_step(groups)["lr"] for _ in range(3)] == pytest.approx([1e-3, 5.5e-4, 1e-4])


def test_gradient_is_clipped_to_the_norm(make_core: MakeCore, groups: list[TrajectoryGroup]) -> None:
    """AdamW's first moment is (1 - beta1) times the clipped gradient: its norm is a tenth of the limit."""
    core = make_core(learner={"max_grad_norm": 1e-3})
    assert core.train_step(groups)["grad_norm"] > 1e-3
    moments = [m for name, m in core.optimizer.moments().items() if name.startswith("exp_avg/")]
    assert float(torch.stack([m.square().sum() for m in moments]).sum().sqrt()) == pytest.approx(1e-4, rel=1e-3)


def test_bfloat16_base_keeps_a_float32_adapter(
    make_core: MakeCore, groups: list[TrajectoryGroup], tiny_model: Path
) -> None:
    core = make_core(model={"path": str(tiny_model), "dtype": "bfloat16"})
    metrics = core.train_step(groups)
    assert metrics["skipped_updates"] == 0
    assert {tensor.dtype for tensor in adapter_of(core).values()} == {torch.float32}
    assert next(core.policy.encoder.parameters()).dtype == torch.bfloat16


def test_ranks_plan_alike_and_cover_every_row(make_core: MakeCore, groups: list[TrajectoryGroup]) -> None:
    packed, _ = pack(members_of(groups)[0])
    plans = [plan_rounds(packed.sequences, rank, 3, 400) for rank in range(3)]
    assert len({rounds for _, rounds in plans}) == 1
    assert max(len(batches) for batches, _ in plans) == plans[0][1]
    rows = sorted(index for batches, _ in plans for batch in batches for index in batch)
    assert rows == list(range(len(packed.sequences)))
