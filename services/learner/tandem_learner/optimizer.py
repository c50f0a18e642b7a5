"""AdamW over each rank's part of the adapter, by the norm of the whole gradient."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from tandem.config import LearnerConfig
from tandem.model.sharding import ShardedParameter
from tandem.types import UserError
from tandem_learner.comm import Comm

MOMENTS = ("exp_avg", "exp_avg_sq")


class ShardedAdamW:
    """AdamW (Loshchilov & Hutter 2019, arXiv:1711.05101) on local shards; empty ones are left out."""

    def __init__(self, parameters: Mapping[str, ShardedParameter], config: LearnerConfig, comm: Comm) -> None:
        self.parameters = parameters
        self.max_grad_norm = config.max_grad_norm
        self.comm = comm
        self.skipped = 0
        with torch.no_grad():
            self.slots = {name: nn.Parameter(p.local) for name, p in parameters.items() if math.prod(p.shape)}
        self.optimizer = torch.optim.AdamW(
            list(self.slots.values()) or [nn.Parameter(torch.zeros(0))],  # AdamW refuses an empty list
            lr=config.lr,
            betas=config.betas,
            weight_decay=config.weight_decay,
        )
        self.reset()

    def reset(self) -> None:
        """Forget all moments."""
        self.skipped = 0
        for slot in self.slots.values():
            zeros = {moment: torch.zeros_like(slot) for moment in MOMENTS}
            self.optimizer.state[slot] = {"step": torch.tensor(0.0), **zeros}

    def step(self, lr: float, *, loss_is_finite: bool) -> dict[str, float]:
        """Clip, update, and drop the gradients. A collective.

        A loss or gradient that is not finite anywhere skips the update on every rank. Returns `grad_norm`
        (before clipping) and `skipped_updates`.
        """
        gradients = {name: p.local_gradient for name, p in self.parameters.items() if name in self.slots}
        squares = sum((g.double().square().sum() for g in gradients.values() if g is not None), torch.zeros(()))
        norm = math.sqrt(self.comm.sums({"squares": float(squares)})["squares"])
        skip = not (loss_is_finite and math.isfinite(norm))
        if skip:
            self.skipped += 1
        else:
            self._update(gradients, lr, min(1.0, self.max_grad_norm / (norm + 1e-6)))
        for parameter in self.parameters.values():
            parameter.parameter.grad = None
        return {"grad_norm": norm, "skipped_updates": float(skip)}

    def _update(self, gradients: Mapping[str, Tensor | None], lr: float, scale: float) -> None:
        for name, slot in self.slots.items():
            gradient = gradients[name]
            slot.data = self.parameters[name].local  # FSDP may have moved the shard since
            slot.grad = torch.zeros_like(slot) if gradient is None else gradient * scale
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()
        for slot in self.slots.values():
            slot.grad = None

    def moments(self) -> dict[str, Tensor]:
        """`exp_avg/NAME` and `exp_avg_sq/NAME` of this rank's shards, float32."""
        return {
            f"{moment}/{name}": self.optimizer.state[slot][moment]
            for name, slot in self.slots.items()
            for moment in MOMENTS
        }

    @property
    def updates(self) -> float:
        """How many updates were made, or begun."""
        return max((float(self.optimizer.state[slot]["step"]) for slot in self.slots.values()), default=0.0)

    def counters(self) -> dict[str, Tensor]:
        """What all ranks share: `step/updates` and `step/skipped`, float32 [1]."""
        return {
            "step/updates": torch.tensor([self.updates]),
            "step/skipped": torch.tensor([float(self.skipped)]),
        }

    def load(self, moments: Mapping[str, Tensor], counters: Mapping[str, Tensor]) -> None:
        """Continue from saved moments (of this rank's shards) and counters."""
        if set(moments) != set(self.moments()):
            raise UserError("training state: its tensors are not this learner's; use the settings it was made with")
        for name, slot in self.slots.items():
            state = self.optimizer.state[slot]
            for moment in MOMENTS:
                state[moment].copy_(moments[f"{moment}/{name}"])
            state["step"].fill_(float(counters["step/updates"]))
        self.skipped = int(counters["step/skipped"])
