"""LoRA through peft: attach an adapter to the base model, and name its tensors as PEFT's files do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import peft
import torch
from peft.tuners.lora import LoraLayer
from torch import nn
from transformers import PreTrainedModel

from tandem.config import LoraConfig
from tandem.types import UserError

PREFIX = "base_model.model."  # what PEFT puts before a module's name in adapter_model.safetensors
ADAPTER = "default"


def attach_lora(model: PreTrainedModel, lora: LoraConfig, *, seed: int) -> peft.LoraConfig:
    """Put a fresh float32 adapter on `model`, in place, and freeze everything else.

    B starts at zero, so the policy is still the base model's. A is drawn from `seed`: every rank gets the
    same.

    Raises:
        UserError: `target_modules` matches nothing, reaches what cannot be trained here, or disagrees with
            `vision`.
    """
    targets = lora.target_modules if isinstance(lora.target_modules, str) else list(lora.target_modules)
    settings = peft.LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        target_modules=targets,
        lora_dropout=0.0,
        bias="none",
        task_type="CAUSAL_LM",
        inference_mode=False,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            peft.get_peft_model(model, settings, adapter_name=ADAPTER)
        except ValueError as problem:
            raise UserError(f"learner.lora.target_modules {lora.target_modules!r}: {problem}") from problem
    _check_reach(model, lora)
    return settings


def adapter_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The trainable parameters by their names in adapter_model.safetensors, sorted by name."""
    found = {PREFIX + name.replace(f".{ADAPTER}.", "."): p for name, p in model.named_parameters() if p.requires_grad}
    return dict(sorted(found.items()))


@contextmanager
def base_policy(model: nn.Module) -> Iterator[None]:
    """Within, the model is the base model: its adapter counts for nothing. For forward passes without gradients."""
    layers = [module for module in model.modules() if isinstance(module, LoraLayer)]
    for layer in layers:
        layer.set_scale(ADAPTER, 0.0)  # peft's own switch also flips requires_grad, which FSDP would have to follow
    try:
        yield
    finally:
        for layer in layers:
            layer.set_scale(ADAPTER, 1.0)


def adapter_config_json(settings: peft.LoraConfig) -> str:
    """adapter_config.json as PEFT would write it beside a published adapter."""
    fields: dict[str, Any] = {**settings.to_dict(), "inference_mode": True}
    return json.dumps({key: _plain(value) for key, value in fields.items()}, sort_keys=True)


def _plain(value: Any) -> Any:
    """JSON types: sets become sorted lists, enums their values."""
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    return getattr(value, "value", value)


def _check_reach(model: nn.Module, lora: LoraConfig) -> None:
    where = "learner.lora.target_modules"
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    for name in trained:
        if not name.startswith(("model.language_model.layers.", "model.visual.")) or ".patch_embed." in name:
            raise UserError(
                f"{where} reaches {name}: only linear layers of decoder layers and vision tower can be trained"
            )
    vision = any(name.startswith("model.visual.") for name in trained)
    if vision != lora.vision:
        reach = "reaches" if vision else "does not reach"
        raise UserError(f"{where} {reach} the vision tower, but learner.lora.vision is {lora.vision}; make them agree")
