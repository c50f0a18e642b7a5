"""FSDP2 over the policy: what is sharded, and each rank's part of the adapter.

Decoder layers are sharded one by one. The embedding and the head stay whole (they are called outside the
layers), and so does a frozen vision tower: each rank then encodes as many images as it has, without waiting
for others. A tower with an adapter is one sharded unit, which every rank runs once per update.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from tandem.model.lora import adapter_parameters
from tandem.model.vision import VisionEncoder


@dataclass(frozen=True)
class ShardedParameter:
    """This rank's part of one adapter tensor: rows `offset[0]` .. `offset[0] + shape[0]` of the whole."""

    parameter: nn.Parameter  # a DTensor, Shard(0)
    global_shape: tuple[int, ...]
    shape: tuple[int, ...]
    offset: tuple[int, ...]

    @property
    def local(self) -> Tensor:
        """The part itself, float32 [shape]; shares memory with the model."""
        with torch.no_grad():
            return _local(self.parameter)

    @property
    def local_gradient(self) -> Tensor | None:
        """The gradient's part, float32 [shape], or None before a backward pass."""
        with torch.no_grad():
            return None if self.parameter.grad is None else _local(self.parameter.grad)


@dataclass(frozen=True)
class ShardedPolicy:
    """The sharded model with its adapter. `parameters`: by PEFT name, in one order on all ranks."""

    model: Any  # Qwen3VLForConditionalGeneration
    encoder: VisionEncoder
    parameters: Mapping[str, ShardedParameter]
    trains_vision: bool

    def reduce_gradients(self, now: bool) -> None:
        """Whether the next backward pass reduces over ranks, or only adds to this rank's gradients."""
        text: FSDPModule = self.model.model.language_model
        text.set_requires_gradient_sync(now)


def shard_policy(model: Any, mesh: DeviceMesh, *, recompute: bool) -> ShardedPolicy:
    """Shard `model` (LoRA attached, on the mesh's device) in place. `recompute` keeps no activations."""
    text = model.model.language_model
    encoder = VisionEncoder(model.model.visual, recompute)
    trains_vision = any(parameter.requires_grad for parameter in encoder.parameters())
    if recompute:
        text.train()  # transformers recomputes in training mode only; there is no dropout to wake up
        text.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    for layer in text.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(text, mesh=mesh, ignored_params=set(text.embed_tokens.parameters()))
    if trains_vision:
        fully_shard(encoder, mesh=mesh)
    parameters = {name: _describe(parameter) for name, parameter in adapter_parameters(model).items()}
    return ShardedPolicy(model, encoder, parameters, trains_vision)


def _describe(parameter: nn.Parameter) -> ShardedParameter:
    assert isinstance(parameter, DTensor), "only sharded modules hold trainable parameters"
    shape, offset = compute_local_shape_and_global_offset(parameter.shape, parameter.device_mesh, parameter.placements)
    return ShardedParameter(parameter, tuple(parameter.shape), tuple(shape), tuple(offset))


def _local(tensor: Tensor) -> Tensor:
    assert isinstance(tensor, DTensor)
    return tensor.to_local()
