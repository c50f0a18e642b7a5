"""The algorithms where they bite: in steps of a real model, against what their pages say."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

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

from tandem.algo import ADVANTAGES, group_advantages, in_order, return_table
from tandem.types import FinishReason, PublishKind, TrajectoryGroup, Turn
from tandem_learner.forward import measure
from tandem_learner.host_copy import shard_file
from tandem_learner.minibatches import kl_of_trajectories, make_minibatches


@pytest.fixture(scope="module")
def groups(tiny_model: Path) -> list[TrajectoryGroup]:
    """Whole transcripts and windows of one turn."""
    short = play_groups(tiny_model, groups=3, group_size=4, window=1, max_turns=3)
    return [*short, *play_groups(tiny_model, groups=2, group_size=4, window=0, max_turns=3, start=1000)]


def _algo(**settings: Any) -> dict[str, Any]:
    return {"learner": {"algo": settings}}


def _flat(groups: Sequence[TrajectoryGroup]) -> list[TrajectoryGroup]:
    """Nobody earns anything."""

    def poor(turn: Turn) -> Turn:
        return replace(turn, reward=0.0)

    return [
        replace(g, trajectories=tuple(replace(t, turns=tuple(map(poor, t.turns))) for t in g.trajectories))
        for g in groups
    ]


EVERYTHING = {
    "loss": "gspo",
    "ratio": "learner",
    "aggregation": "seq_mean_token_mean",
    "correction": {"kind": "truncate", "level": "sequence"},
    "kl": {"coef": 0.1, "estimator": "k3"},
    "entropy_coef": 0.01,
}


@pytest.mark.parametrize(
    "algo",
    [
        {"loss": "cispo", "aggregation": "seq_mean_token_sum_norm"},
        {"loss": "ppo_clip", "dual_clip": 3.0, "aggregation": "seq_mean_token_sum", "clip_high": 0.3},
        {"loss": "sft", "aggregation": "seq_mean_token_mean", "entropy_coef": 0.1},
        EVERYTHING,
    ],
    ids=["cispo", "dual clip", "sft", "gspo with everything"],
)
def test_microbatch_split_changes_nothing(
    make_core: MakeCore, groups: list[TrajectoryGroup], algo: dict[str, Any]
) -> None:
    """Of a later update of a step: ratio, correction and price of distance all rest on what was measured before."""
    turns, advantages = members_of(groups)
    found = []
    for budget in (100_000, 300):
        core = in_float64(make_core(learner={"algo": algo, "microbatch_tokens": budget}))
        nudge(core, 7)  # off the base policy
        found.append(gradients_of(core, turns, advantages, groups, moves=1))
    assert_same_gradients(*found)


def test_no_advantage_no_step(make_core: MakeCore, groups: list[TrajectoryGroup]) -> None:
    """Equal returns kept on request: the gradient is exactly zero."""
    core = make_core(**_algo(drop_zero_variance=False))
    metrics = core.train_step(_flat(groups))
    assert (metrics["updates"], metrics["grad_norm"], metrics["groups_used"]) == (1, 0, 5)


def test_ratio_to_the_learner_starts_at_exactly_one(make_core: MakeCore, groups: list[TrajectoryGroup]) -> None:
    """The rollout's logprobs are made up here: they only show in the gap."""
    metrics = make_core(**_algo(ratio="learner")).train_step(groups)
    assert metrics["approx_kl"] == 0
    assert metrics["clip_share"] == 0
    assert metrics["rollout_learner_logprob_gap_mean"] > 0.1


def test_ratio_to_the_learner_in_later_minibatches_is_to_the_start_of_the_step(
    make_core: MakeCore, groups: list[TrajectoryGroup]
) -> None:
    """Both halves are the same groups: the second update's ratio says how far the first one went."""
    twins = [*groups, *(replace(g, group_id=f"{g.group_id} again", seed=g.seed + 10**6) for g in groups)]
    metrics = make_core(learner={"minibatches": 2, "algo": {"ratio": "learner"}}).train_step(twins)
    once = make_core(**_algo(ratio="learner"))
    before = _logprobs(with_logprobs_of(once, groups))
    once.train_step(groups)
    log_ratio = _logprobs(with_logprobs_of(once, groups)) - before
    second = (log_ratio.exp() - 1 - log_ratio).mean().item()
    assert metrics["updates"] == 2
    assert second > 1e-4
    assert metrics["approx_kl"] == pytest.approx(second / 2, rel=1e-3)  # the first one's is 0


def _logprobs(groups: Sequence[TrajectoryGroup]) -> torch.Tensor:
    """Rollout logprobs of all groups that are learned from, in their order."""
    kept = [t for g in groups if g.has_signal for t in g.trajectories]
    return torch.tensor([p for t in kept for turn in t.turns for p in turn.rollout_logprobs])


def test_correction_weighs_by_the_gap(make_core: MakeCore, groups: list[TrajectoryGroup]) -> None:
    core = make_core(**_algo(ratio="learner", correction={"kind": "truncate", "high": 1.0}))
    own = with_logprobs_of(core, groups)
    assert core.train_step(own)["correction_weight"] == pytest.approx(1, abs=1e-4)
    masked = make_core(**_algo(ratio="learner", correction={"kind": "mask"}))
    before = adapter_of(masked)
    far = [
        replace(
            g,
            trajectories=tuple(
                replace(t, turns=tuple(replace(u, rollout_logprobs=(-200.0,) * len(u.completion_ids)) for u in t.turns))
                for t in g.trajectories
            ),
        )
        for g in groups
    ]
    metrics = masked.train_step(far)
    assert (metrics["correction_weight"], metrics["grad_norm"], metrics["skipped_updates"]) == (0, 0, 0)
    assert all(torch.equal(before[name], now) for name, now in adapter_of(masked).items())


def test_distance_to_the_base_model_starts_at_exactly_zero(make_core: MakeCore, groups: list[TrajectoryGroup]) -> None:
    core = make_core(**_algo(kl={"coef": 0.1, "estimator": "k3"}))
    assert core.train_step(groups)["ref_kl"] == 0  # B is zero: the adapter changes nothing
    assert core.train_step(groups)["ref_kl"] > 0


def test_price_of_distance_pulls_back(make_core: MakeCore, groups: list[TrajectoryGroup]) -> None:
    """Without anything to earn, only the KL term is left."""
    core = make_core(**_algo(kl={"coef": 1.0, "estimator": "k2"}, drop_zero_variance=False))
    core.train_step(groups)
    away = [core.train_step(_flat(groups))["ref_kl"] for _ in range(4)]
    assert away[-1] < away[0]


def test_entropy_bonus_raises_entropy(make_core: MakeCore, groups: list[TrajectoryGroup], tiny_model: Path) -> None:
    core = make_core(**_algo(entropy_coef=1.0, drop_zero_variance=False))
    entropy = [core.train_step(_flat(groups))["entropy"] for _ in range(3)]
    assert entropy[0] < entropy[1] < entropy[2]


@pytest.mark.parametrize("ratio", ["rollout", "learner"])
def test_kl_in_the_reward_comes_off_the_returns(make_core: MakeCore, groups: list[TrajectoryGroup], ratio: str) -> None:
    """The loss of a step at ratio 1 is minus the mean advantage, here of returns minus the KL summed by hand."""
    coef = 0.5
    core = make_core(**_algo(ratio=ratio, advantage="dr_grpo", kl={"coef": coef, "estimator": "k1", "place": "reward"}))
    core.train_step(groups)
    own = in_order(with_logprobs_of(core, groups))
    kept = [group for group in own if group.has_signal]
    returns, valid = return_table(kept)
    base = make_core()  # a fresh adapter counts for nothing
    for row, group in enumerate(kept):
        for column, trajectory in enumerate(group.trajectories):
            [minibatch] = make_minibatches([replace(group, trajectories=(trajectory,))], 1, 1, mask_overlong=False)
            ref = measure(base.policy, minibatch.packed, group.images, base.settings, base.comm)
            returns[row, column] -= coef * kl_of_trajectories(minibatch.packed, ref, None, "k1").item()
    advantages = group_advantages("dr_grpo", returns, valid)[0].flatten().tolist()
    lengths = [sum(len(turn.completion_ids) for turn in t.turns) for g in kept for t in g.trajectories]
    expected = -sum(a * n for a, n in zip(advantages, lengths, strict=True)) / sum(lengths)
    assert core.train_step(own)["loss"] == pytest.approx(expected, abs=1e-5)


def test_overlong_trajectories_stay_in_the_baseline_and_out_of_the_loss(
    make_core: MakeCore, groups: list[TrajectoryGroup]
) -> None:
    group = next(g for g in groups if g.has_signal)
    first = group.trajectories[0]
    cut = replace(first, turns=(replace(first.turns[0], finish=FinishReason.LENGTH), *first.turns[1:]))
    with_cut = [replace(group, trajectories=(cut, *group.trajectories[1:]))]
    core = make_core(**_algo(mask_overlong=True, advantage="dr_grpo"))
    own = with_logprobs_of(core, with_cut)
    metrics = core.train_step(own)
    assert metrics["trajectories_used"] == 3
    advantages = group_advantages("dr_grpo", *return_table(with_cut))[0][0].tolist()  # of all four
    lengths = [sum(len(turn.completion_ids) for turn in t.turns) for t in group.trajectories]
    expected = -sum(a * n for a, n in zip(advantages[1:], lengths[1:], strict=True)) / sum(lengths[1:])
    assert metrics["loss"] == pytest.approx(expected, abs=1e-6)


def test_supervised_learns_all_that_was_completed(make_core: MakeCore, groups: list[TrajectoryGroup]) -> None:
    """Groups of any size, with or without differences; the loss is the mean negative log-likelihood."""
    ragged = [replace(groups[0], trajectories=groups[0].trajectories[:1]), *_flat(groups[1:])]
    core = make_core(**_algo(loss="sft"))
    own = [t for g in with_logprobs_of(core, ragged) for t in g.trajectories]
    logprobs = [value for t in own for turn in t.turns for value in turn.rollout_logprobs]
    losses = [core.train_step(ragged)["loss"] for _ in range(4)]
    assert losses[0] == pytest.approx(-sum(logprobs) / len(logprobs), abs=1e-5)
    assert losses == sorted(losses, reverse=True)


def test_supervised_learns_the_model_itself_whatever_rollouts_are_sampled_at(
    make_core: MakeCore, groups: list[TrajectoryGroup]
) -> None:
    """What is imitated was not drawn at `rollout.temperature`: dividing by it would teach another distribution."""
    rollout = {"group_size": 4, "temperature": 0.5}
    losses = [make_core(**_algo(loss="sft"), rollout=r).train_step(groups)["loss"] for r in (rollout, {})]
    assert losses[0] == losses[1]


@pytest.mark.parametrize("algo", [{}, {"loss": "sft"}], ids=["rl", "sft"])
def test_step_without_an_update_has_a_loss_and_a_norm_all_the_same(
    make_core: MakeCore, groups: list[TrajectoryGroup], algo: dict[str, Any]
) -> None:
    def silent(turn: Turn) -> Turn:
        return replace(turn, completion_ids=(), rollout_logprobs=())

    mute = [
        replace(g, trajectories=tuple(replace(t, turns=tuple(map(silent, t.turns))) for t in g.trajectories))
        for g in groups
    ]
    metrics = make_core(**_algo(**algo)).train_step(mute)
    assert [metrics[name] for name in ("loss", "grad_norm", "updates", "skipped_updates", "tokens")] == [0] * 5


@pytest.mark.parametrize("algo", [{}, {**EVERYTHING, "kl": {"coef": 0.1, "place": "reward"}}], ids=["plain", "all"])
def test_order_of_arrival_changes_no_bit(
    make_core: MakeCore, groups: list[TrajectoryGroup], algo: dict[str, Any]
) -> None:
    """Two learners, the same groups in another order with their members in another order: the same shards."""
    shuffle = random.Random(0)
    settings = {"learner": {"minibatches": 2, "microbatch_tokens": 300, "algo": algo}, "run": {"deterministic": True}}
    found = []
    for mixed in (False, True):
        core = make_core(**settings)
        for _ in range(2):
            sent = list(groups)
            if mixed:
                sent = [replace(g, trajectories=tuple(shuffle.sample(g.trajectories, 4))) for g in sent]
                shuffle.shuffle(sent)
            core.train_step(sent)
        copies = [core.snapshot(kind) for kind in (PublishKind.ADAPTER, PublishKind.STATE)]
        found.append([shard_file(copy).ref.sha256 for copy in copies])
    assert found[0] == found[1]


def test_image_is_encoded_once_a_run(make_core: MakeCore, groups: list[TrajectoryGroup]) -> None:
    core, without = make_core(), make_core(learner={"image_cache_gib": 0})
    first, second = core.train_step(groups), core.train_step(groups)
    assert (first["images_cached"], second["images_cached"]) == (0, first["images"])
    for _ in range(2):
        assert without.train_step(groups)["images_cached"] == 0
    for name, tensor in adapter_of(core).items():
        assert_close(tensor, adapter_of(without)[name], rtol=0, atol=1e-6)


def test_images_of_a_tower_that_learns_are_not_kept(make_core: MakeCore, groups: list[TrajectoryGroup]) -> None:
    core = make_core(learner={"lora": {"rank": 8, "vision": True, "target_modules": VISION}})
    assert [core.train_step(groups)["images_cached"] for _ in range(2)] == [0, 0]
    assert len(core.settings.cache) == 0


def test_base_model_of_a_tower_that_learns_is_its_own(make_core: MakeCore, groups: list[TrajectoryGroup]) -> None:
    """ref_logprobs see images as the base model's tower gives them."""
    lora = {"rank": 8, "vision": True, "target_modules": VISION}
    core = make_core(learner={"lora": lora, "algo": {"kl": {"coef": 0.1}}})
    assert core.train_step(groups)["ref_kl"] == 0
    assert core.train_step(groups)["ref_kl"] > 0


def test_turns_without_a_completion_earn_but_teach_nothing(make_core: MakeCore, groups: list[TrajectoryGroup]) -> None:
    """One member says nothing all the way: the others are compared with it all the same."""
    group = next(g for g in groups if g.has_signal)
    first = group.trajectories[0]
    silent = tuple(replace(turn, completion_ids=(), rollout_logprobs=()) for turn in first.turns)
    with_silent = replace(group, trajectories=(replace(first, turns=silent), *group.trajectories[1:]))
    core = make_core(**_algo(advantage="dr_grpo", aggregation="seq_mean_token_sum", ratio="learner"))
    metrics = core.train_step([with_silent])
    advantages = group_advantages("dr_grpo", *return_table([group]))[0][0].tolist()  # of all four
    lengths = [sum(len(turn.completion_ids) for turn in t.turns) for t in group.trajectories]
    expected = -sum(a * n for a, n in zip(advantages[1:], lengths[1:], strict=True)) / 3
    assert metrics["loss"] == pytest.approx(expected, abs=1e-5)
    assert metrics["skipped_updates"] == 0


@pytest.mark.parametrize("advantage", ADVANTAGES)
def test_rewards_beyond_float32_skip_the_update(
    make_core: MakeCore, groups: list[TrajectoryGroup], advantage: str
) -> None:
    """Should one get past `validate`: no weight becomes NaN, and no update without a gradient looks like one."""
    group = next(g for g in groups if g.has_signal)
    first = group.trajectories[0]
    rich = replace(first, turns=(replace(first.turns[0], reward=1e300), *first.turns[1:]))
    core = make_core(**_algo(advantage=advantage))
    before = adapter_of(core)
    metrics = core.train_step([replace(group, trajectories=(rich, *group.trajectories[1:]))])
    assert metrics["skipped_updates"] == 1
    assert all(torch.equal(before[name], now) for name, now in adapter_of(core).items())


def test_price_beyond_float32_skips_the_update(make_core: MakeCore, groups: list[TrajectoryGroup]) -> None:
    """A logprob that is finite, and whose square in `k2` is not: all returns are minus infinity."""

    def absurd(turn: Turn) -> Turn:
        return replace(turn, rollout_logprobs=(-1e30,) * len(turn.completion_ids))

    group = next(g for g in groups if g.has_signal)
    sent = replace(group, trajectories=tuple(replace(t, turns=tuple(map(absurd, t.turns))) for t in group.trajectories))
    core = make_core(**_algo(loss="cispo", kl={"coef": 0.1, "place": "reward"}))  # whose clipped ratio stays finite
    before = adapter_of(core)
    assert core.train_step([sent])["skipped_updates"] == 1
    assert all(torch.equal(before[name], now) for name, now in adapter_of(core).items())
