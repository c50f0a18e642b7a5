"""One training step, the chain from groups to the next policy.

in_order, select_groups -> make_minibatches -> measure (only what the settings ask for)
    -> returns, perhaps minus their KL -> advantages -> (token weights, gradient, AdamW step) each minibatch
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from torch import Tensor

from tandem.algo import group_advantages, in_order, return_table, select_groups, token_weights
from tandem.config import Config
from tandem.model.lora import base_policy
from tandem.model.sharding import ShardedPolicy
from tandem.obs import span
from tandem.types import TrajectoryGroup
from tandem_learner.comm import Comm
from tandem_learner.figures import combine
from tandem_learner.forward import ForwardSettings, Measured, measure
from tandem_learner.minibatches import Minibatch, kl_of_trajectories, make_minibatches
from tandem_learner.optimizer import ShardedAdamW
from tandem_learner.phases import Phases
from tandem_learner.update import UpdateBatch, accumulate_gradients

Measures: TypeAlias = Sequence[Measured | None]  # one per minibatch, None where nobody asks
Advantages: TypeAlias = Mapping[str, Mapping[int, float]]  # of what was learned from, by group id and member


@dataclass(frozen=True)
class Trainer:
    """What a step works with."""

    config: Config
    policy: ShardedPolicy
    optimizer: ShardedAdamW
    settings: ForwardSettings
    comm: Comm


def learn(at: Trainer, groups: Sequence[TrajectoryGroup], lr: float) -> tuple[Advantages, dict[str, float]]:
    """Update the policy from checked groups; their advantages and the step's figures. A collective. Groups may come in
    any order."""
    phases, learner = Phases(), at.config.learner
    algo = learner.algo
    drop = algo.drop_zero_variance and not algo.supervised
    kept, figures = select_groups(in_order(groups), drop_zero_variance=drop)
    images = {name: png for group in kept for name, png in group.images.items()}
    with phases("pack"):
        returns, valid = return_table(kept)  # [G, S]
        minibatches = make_minibatches(kept, learner.minibatches, returns.shape[1], mask_overlong=algo.mask_overlong)
    with phases("logprobs"):
        start, ref = _measure(at, minibatches, images)
    if algo.kl.coef and algo.kl.place == "reward":
        returns = _minus_kl(at, returns, minibatches, start, ref)
    spread: dict[str, float] = {}
    advantages = valid.float()
    with span("advantages", {"rl.groups": len(kept)}) as at_work:
        if not algo.supervised:
            advantages, spread = group_advantages(algo.advantage, returns, valid)
        at_work.set({f"rl.{name}": value for name, value in spread.items()})
    updates = [
        _update(at, minibatch, advantages.flatten()[minibatch.places], images, before, base, lr, phases)
        for minibatch, before, base in zip(minibatches, [None, *start[1:]], ref, strict=False)
    ]
    used = _by_member(kept, minibatches, advantages)
    return used, {**figures, **spread, **combine(updates), "lr": lr, **phases.metrics()}


def _by_member(
    groups: Sequence[TrajectoryGroup], minibatches: Sequence[Minibatch], advantages: Tensor
) -> dict[str, dict[int, float]]:
    """The advantages [G, S] of the trajectories that some minibatch has."""
    found: dict[str, dict[int, float]] = {}
    for place in (place for minibatch in minibatches for place in minibatch.places.tolist()):
        group, column = groups[place // advantages.shape[1]], place % advantages.shape[1]
        member = group.trajectories[column].member
        found.setdefault(group.group_id, {})[member] = float(advantages.flatten()[place])
    return found


def _measure(at: Trainer, minibatches: Sequence[Minibatch], images: Mapping[str, bytes]) -> tuple[Measures, Measures]:
    """Before anything moves: the learner's logprobs and the base model's of each minibatch.

    The first update computes the learner's itself, by its own forward pass: its ratio is then exactly 1.
    """
    kl = at.config.learner.algo.kl
    first = 0 if kl.coef and kl.place == "reward" else 1

    def measure_from(first: int) -> Measures:
        return [
            measure(at.policy, minibatch.packed, images, at.settings, at.comm) if index >= first else None
            for index, minibatch in enumerate(minibatches)
        ]

    start = measure_from(first if at.config.learner_ratio else len(minibatches))
    if not kl.coef:
        return start, [None] * len(minibatches)
    with base_policy(at.policy.model):
        return start, measure_from(0)


def _minus_kl(at: Trainer, returns: Tensor, minibatches: Sequence[Minibatch], start: Measures, ref: Measures) -> Tensor:
    """Returns [G, S] minus what leaving the base model costs; what is in no minibatch pays nothing."""
    kl = at.config.learner.algo.kl
    costs = returns.new_zeros(returns.numel())
    for minibatch, own, base in zip(minibatches, start, ref, strict=True):
        mine = kl_of_trajectories(minibatch.packed, base or {}, own, kl.estimator)  # [N]
        costs[minibatch.places] = kl.coef * at.comm.total(mine)
    return returns - costs.view_as(returns)


def _update(
    at: Trainer,
    minibatch: Minibatch,
    advantages: Tensor,
    images: Mapping[str, bytes],
    start: Measured | None,
    ref: Measured | None,
    lr: float,
    phases: Phases,
) -> dict[str, float]:
    """One optimizer update by a minibatch of N trajectories with advantages float32 [N]; its figures."""
    config = at.config
    longest = config.rollout.max_tokens * config.env.max_turns
    weights = token_weights(config.learner.algo.aggregation, minibatch.packed.lengths, longest)
    batch = UpdateBatch(minibatch.packed, images, advantages, weights, config.learner_ratio, start, ref)
    tally = accumulate_gradients(at.policy, batch, config.learner.algo, at.settings, at.comm, phases)
    with phases("optimizer"):
        step = at.optimizer.step(lr, loss_is_finite=math.isfinite(tally.loss))
    return {**minibatch.counts, **step, **tally.figures()}
