"""Learner cores in this process, looked into: weights, gradients, logprobs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from tandem.algo import pack, token_weights
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
) -> dict[str, torch.Tensor]:
    packed, _ = pack(trajectories)
    images = {name: png for group in groups for name, png in group.images.items()}
    algo = core.config.learner.algo
    weights = token_weights(algo.aggregation, packed.lengths, 100)
    batch = UpdateBatch(packed, images, torch.tensor(advantages), weights, core.config.learner_ratio)
    accumulate_gradients(core.policy, batch, algo, core.settings, core.comm, Phases())
    found = {}
    for name, parameter in core.policy.parameters.items():
        gradient = parameter.local_gradient
        assert gradient is not None
        found[name] = gradient.clone()
        parameter.parameter.grad = None
    return found


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
