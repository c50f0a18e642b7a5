"""Learner cores in this process, looked into: weights, gradients, logprobs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch.testing import assert_close

from tandem.algo import pack, token_weights
from tandem.model.lora import base_policy
from tandem.types import TrajectoryGroup, Turn
from tandem_learner.core import LearnerCore
from tandem_learner.forward import measure
from tandem_learner.phases import Phases
from tandem_learner.update import UpdateBatch, accumulate_gradients

VISION = r".*(language_model.*\.(q_proj|v_proj|down_proj)|visual.*\.(qkv|linear_fc1|linear_fc2))"

MakeCore = Callable[..., LearnerCore]


def adapter_of(core: LearnerCore) -> dict[str, torch.Tensor]:
    return {name: p.local.clone() for name, p in core.policy.parameters.items()}


def gradients_of(
    core: LearnerCore,
    trajectories: Sequence[Sequence[Turn]],
    advantages: Sequence[float],
    groups: Sequence[TrajectoryGroup],
    moves: int = 0,
) -> dict[str, torch.Tensor]:
    """The gradient of one update, after so many others of its step: with what was measured before them, if any."""
    packed, _ = pack(trajectories)
    images = {name: png for group in groups for name, png in group.images.items()}
    algo = core.config.learner.algo
    weights = token_weights(algo.aggregation, packed.lengths, 100)
    start, ref = None, None
    if moves and core.config.learner_ratio:
        start = measure(core.policy, packed, images, core.settings, core.comm)
    if algo.kl.coef:
        with base_policy(core.policy.model):
            ref = measure(core.policy, packed, images, core.settings, core.comm)
    for move in range(moves):
        nudge(core, move)
    batch = UpdateBatch(packed, images, torch.tensor(advantages), weights, core.config.learner_ratio, start, ref)
    accumulate_gradients(core.policy, batch, algo, core.settings, core.comm, Phases())
    found = {}
    for name, parameter in core.policy.parameters.items():
        gradient = parameter.local_gradient
        assert gradient is not None
        found[name] = gradient.clone()
        parameter.parameter.grad = None
    return found


def nudge(core: LearnerCore, seed: int) -> None:
    """Move the policy a little, the same way for every learner."""
    random = torch.Generator().manual_seed(seed)
    for parameter in core.policy.parameters.values():
        parameter.local.add_(torch.randn(parameter.local.shape, generator=random), alpha=0.01)


def in_float64(core: LearnerCore) -> LearnerCore:
    """The same with a float64 model: sums in another order differ by 1e-15 of the gradient then, in float32 by 1e-6."""
    core.policy.model.double()
    core.policy.encoder.double()
    return core


def assert_same_gradients(found: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> None:
    """To 1e-6 of the largest entry of all."""
    assert found.keys() == expected.keys()
    largest = max(float(gradient.abs().max()) for gradient in expected.values())
    assert largest > 0
    for name, gradient in expected.items():
        assert_close(found[name], gradient, rtol=0, atol=1e-6 * largest)


def members_of(groups: Sequence[TrajectoryGroup]) -> tuple[list[tuple[Turn, ...]], list[float]]:
    trajectories = [t for group in groups for t in group.trajectories]
    return [t.turns for t in trajectories], [math.sin(i) for i in range(len(trajectories))]


def with_logprobs_of(core: LearnerCore, groups: list[TrajectoryGroup]) -> list[TrajectoryGroup]:
    def fill(group: TrajectoryGroup, turn: Turn) -> Turn:
        packed, _ = pack([[turn]])
        found = measure(core.policy, packed, group.images, core.settings, core.comm)
        return replace(turn, rollout_logprobs=tuple(found[0].tolist()))

    return [
        replace(
            g,
            trajectories=tuple(replace(t, turns=tuple(fill(g, turn) for turn in t.turns)) for t in g.trajectories),
        )
        for g in groups
    ]
