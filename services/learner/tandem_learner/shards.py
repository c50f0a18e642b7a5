"""A rank's part of the weights or the training state: what its shard holds, and back from a published folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tandem.model.sharding import ShardedParameter
from tandem.storage import Placement, open_tensors
from tandem.types import AdapterRef, UserError
from tandem_learner.optimizer import MOMENTS
from tandem_learner.random_state import RANDOM

COUNTERS = ("step/updates", "step/skipped")


def shard_tensors(
    parts: Mapping[str, Tensor], whole: Mapping[str, Tensor], parameters: Mapping[str, ShardedParameter]
) -> tuple[dict[str, Tensor], dict[str, Placement]]:
    """What a rank's shard holds, by name, and where each tensor lies in its global one.

    Args:
        parts: local parts by parameter name, or by `PREFIX/name`, float32; empty ones are left out.
        whole: tensors that one rank gives alone.
    """
    tensors = {name: part for name, part in parts.items() if part.numel()}
    places = {name: _placement(parameters[name.rpartition("/")[2]]) for name in tensors}
    whole_places = {name: Placement(tuple(value.shape), (0,) * value.ndim) for name, value in whole.items()}
    return {**tensors, **whole}, {**places, **whole_places}


def read_adapter_shard(adapter: AdapterRef, parameters: Mapping[str, ShardedParameter]) -> dict[str, Tensor]:
    """This rank's rows of a published adapter or model, by name. Raises UserError for one of other settings."""
    with open_tensors(adapter, "pt") as file:
        _check_names(set(file.keys()), set(parameters), adapter)
        return {name: _rows(file, name, parameter, adapter) for name, parameter in parameters.items()}


@dataclass(frozen=True)
class SavedState:
    """A training state as one rank takes it: its rows of the moments (parameters without rows left out), the counters,
    and the random streams of all ranks that saved it."""

    moments: Mapping[str, Tensor]
    counters: Mapping[str, Tensor]
    random: Mapping[str, Tensor]


def read_state_shard(state: AdapterRef, parameters: Mapping[str, ShardedParameter]) -> SavedState:
    """This rank's part of a published state. Raises UserError for one of other settings."""
    wanted = {f"{moment}/{name}": parameter for moment in MOMENTS for name, parameter in parameters.items()}
    with open_tensors(state, "pt") as file:
        names = set(file.keys())
        random = {name: file.get_tensor(name) for name in names if name.startswith(RANDOM)}
        _check_names(names - set(random), {*wanted, *COUNTERS}, state)
        moments = {name: _rows(file, name, parameter, state) for name, parameter in wanted.items()}
        counters = {name: file.get_tensor(name) for name in COUNTERS}
        return SavedState({name: rows for name, rows in moments.items() if rows.numel()}, counters, random)


def _rows(file: Any, name: str, parameter: ShardedParameter, ref: AdapterRef) -> Tensor:
    whole = file.get_slice(name)
    if tuple(whole.get_shape()) != parameter.global_shape:
        raise UserError(
            f"{ref.url}: {name} is {list(whole.get_shape())}, the learner's is "
            f"{list(parameter.global_shape)}; use the learner settings it was made with"
        )
    if not all(parameter.shape):
        return torch.zeros(parameter.shape)
    return whole[parameter.offset[0] : parameter.offset[0] + parameter.shape[0]]


def _check_names(found: set[str], wanted: set[str], ref: AdapterRef) -> None:
    if odd := sorted(found ^ wanted):
        where = "is missing" if odd[0] in wanted else "is not the learner's"
        raise UserError(
            f"{ref.url}: tensor {odd[0]} {where} ({len(odd)} differ); use the learner settings it was made with"
        )


def _placement(parameter: ShardedParameter) -> Placement:
    return Placement(parameter.global_shape, parameter.offset)
