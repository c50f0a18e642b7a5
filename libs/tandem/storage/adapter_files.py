"""The files of an adapter from its shards, and what they must be before peft and vLLM can load them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from tandem.storage.join import JoinPlan, joined_pieces, plan_join
from tandem.storage.manifest import CONFIG_FILE, TENSOR_FILE
from tandem.storage.shards import OpenShard
from tandem.types import DataCorrupt, PublishKind, UserError

DTYPES = ("F32", "BF16")
LORA_A, LORA_B = ".lora_A.weight", ".lora_B.weight"


def adapter_files(
    shards: Sequence[OpenShard], base_model: str, config_json: str, what: str
) -> dict[str, Iterable[bytes]]:
    """The files of the adapter that `shards` make, by name: whoever joins the same shards gets the same bytes.

    Raises:
        UserError: a shard belongs to another base model, or `config_json` describes no LoRA adapter.
        DataCorrupt: the shards do not make one whole adapter of that config.
    """
    config = parse_adapter_config(config_json, what)
    check_base(shards, base_model)
    plan = plan_join(shards, what)
    check_adapter(plan, config, what)
    return {TENSOR_FILE[PublishKind.ADAPTER]: joined_pieces(plan), CONFIG_FILE: [config_json.encode()]}


def check_base(shards: Sequence[OpenShard], base_model: str) -> None:
    """Raises UserError where a shard belongs to another base model (by fingerprint)."""
    for item in shards:
        if item.shard.base_model != base_model:
            raise UserError(
                f"{item.shard.what}: belongs to base model {item.shard.base_model[:12]}..., "
                f"asked for is {base_model[:12]}...; "
                "start learner and controller from the same model.path"
            )


def parse_object(text: str, what: str) -> dict[str, Any]:
    """A JSON object. Raises UserError naming `what` where it is none."""
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as problem:
        raise UserError(f"{what}: not valid JSON: {problem}") from problem
    if not isinstance(value, dict):
        raise UserError(f"{what}: must be a JSON object, got {type(value).__name__}")
    return value


def parse_adapter_config(text: str, what: str) -> dict[str, Any]:
    """PEFT's adapter_config.json. Raises UserError where it describes no LoRA adapter."""
    config = parse_object(text, f"{what}: adapter_config_json")
    if config.get("peft_type") != "LORA":
        raise UserError(
            f"{what}: adapter_config_json: peft_type is {config.get('peft_type')!r}; only 'LORA' is published"
        )
    rank = config.get("r")
    if not isinstance(rank, int) or rank < 1:
        raise UserError(f"{what}: adapter_config_json: r is {rank!r}; it must be the LoRA rank")
    return config


def check_adapter(plan: JoinPlan, config: dict[str, Any], what: str) -> None:
    """Hold the joined tensors against the config: one dtype, every A with its B, ranks as configured.

    Shapes: lora_A is (r, in_features), lora_B is (out_features, r).

    Raises:
        DataCorrupt: naming the tensor.
    """
    names = {tensor.name for tensor in plan.tensors}
    dtype = plan.tensors[0].dtype
    for tensor in plan.tensors:
        if tensor.dtype not in DTYPES or tensor.dtype != dtype:
            raise DataCorrupt(f"{what}: tensor {tensor.name} is {tensor.dtype}; all must be {' or '.join(DTYPES)}")
        for own, other, axis in ((LORA_A, LORA_B, 0), (LORA_B, LORA_A, 1)):
            if not tensor.name.endswith(own):
                continue
            if tensor.name.removesuffix(own) + other not in names:
                raise DataCorrupt(f"{what}: tensor {tensor.name} is there without its {other[1:]}")
            # `rank_pattern` gives modules ranks of their own; peft checks those when it loads
            if not config.get("rank_pattern") and (len(tensor.shape) < 2 or tensor.shape[axis] != config["r"]):
                raise DataCorrupt(
                    f"{what}: tensor {tensor.name} is {list(tensor.shape)}, "
                    f"but adapter_config_json says r {config['r']}"
                )


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")
