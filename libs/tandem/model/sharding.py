"""FSDP2 over the policy: what is sharded, and each rank's part of what is trained.

Decoder layers are sharded one by one. With an adapter, embedding and head stay whole (they are called outside the
layers), and so does a frozen vision tower: each rank then encodes as many images as it has, without waiting
for others. A tower that trains is one sharded unit, which every rank runs once per update. Where all parameters
train, embedding and head are sharded units too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from tandem.model.lora import adapter_parameters
from tandem.model.vision import VisionEncoder
from tandem.types import UserError


@dataclass(frozen=True)
class ShardedParameter:
    """This rank's part of one trained tensor: rows `offset[0]` .. `offset[0] + shape[0]` of the whole."""

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
    """The sharded model. `parameters`: what trains, by its name in the published file, in one order on all ranks.

    `roots`: the outermost sharded units but for the encoder, whose one backward pass always reduces.
    """

    model: Any  # Qwen3VLForConditionalGeneration
    encoder: VisionEncoder
    parameters: Mapping[str, ShardedParameter]
    trains_vision: bool
    roots: tuple[FSDPModule, ...]

    def reduce_gradients(self, now: bool) -> None:
        """Whether the next backward pass reduces over ranks, or only adds to this rank's gradients."""
        for root in self.roots:
            root.set_requires_gradient_sync(now)


def shard_policy(model: Any, mesh: DeviceMesh, *, recompute: bool, full: torch.dtype | None = None) -> ShardedPolicy:
    """Shard `model`, on the mesh's device, in place: its adapter trains, or all parameters, computing in `full`.

    `recompute` keeps no activations. Weights that train are float32 whatever they compute in.

    Raises:
        UserError: all are to train, and embedding and head are one tensor.
    """
    text = model.model.language_model
    encoder = VisionEncoder(model.model.visual, recompute)
    trains_vision = any(parameter.requires_grad for parameter in encoder.parameters())
    if recompute:
        text.train()  # transformers recomputes in training mode only; there is no dropout to wake up
        text.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    roots = _shard_adapter(model, encoder, mesh) if full is None else _shard_all(model, encoder, mesh, full)
    trained = adapter_parameters(model) if full is None else dict(sorted(model.named_parameters()))
    parameters = {name: _describe(parameter) for name, parameter in trained.items()}
    return ShardedPolicy(model, encoder, parameters, trains_vision, roots)


def _shard_adapter(model: Any, encoder: VisionEncoder, mesh: DeviceMesh) -> tuple[FSDPModule, ...]:
    text = model.model.language_model
    for layer in text.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(text, mesh=mesh, ignored_params=set(text.embed_tokens.parameters()))
    if any(parameter.requires_grad for parameter in encoder.parameters()):
        fully_shard(encoder, mesh=mesh)
    return (text,)


def _shard_all(model: Any, encoder: VisionEncoder, mesh: DeviceMesh, dtype: torch.dtype) -> tuple[FSDPModule, ...]:
    text = model.model.language_model
    if text.embed_tokens.weight is model.lm_head.weight:
        raise UserError("learner.trainable full: embedding and head of this model are one tensor; train lora")
    precision = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    for unit in (*text.layers, text.embed_tokens, model.lm_head, encoder):
        fully_shard(unit, mesh=mesh, mp_policy=precision)
    # the embedding is called before the text model: the unit around both must be the one that holds both
    fully_shard(model.model, mesh=mesh, mp_policy=precision, ignored_params=set(encoder.parameters()))
    return model.model, model.lm_head


def _describe(parameter: nn.Parameter) -> ShardedParameter:
    assert isinstance(parameter, DTensor), "only sharded modules hold trainable parameters"
    shape, offset = compute_local_shape_and_global_offset(parameter.shape, parameter.device_mesh, parameter.placements)
    return ShardedParameter(parameter, tuple(parameter.shape), tuple(shape), tuple(offset))


def _local(tensor: Tensor) -> Tensor:
    assert isinstance(tensor, DTensor)
    return tensor.to_local()
