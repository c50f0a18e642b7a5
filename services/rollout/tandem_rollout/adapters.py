"""From a published adapter to a verified folder of the engine's own, with everything checked that can be
before the engine sees it."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from safetensors import safe_open

from tandem.storage import MANIFEST, read_adapter, read_manifest
from tandem.types import AdapterRef, DataCorrupt, PublishKind, UserError
from tandem_rollout.base_model import BaseModel
from tandem_rollout.engine import LocalAdapter

CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"


@dataclass(frozen=True, slots=True)
class AdapterRules:
    """What the engine was started for."""

    base: BaseModel
    max_lora_rank: int
    vision: bool


def stage_adapter(ref: AdapterRef, rules: AdapterRules, folder: Path) -> LocalAdapter:
    """Copy a published adapter below `folder` and check it. Blocks: call it in a thread.

    The copy has a name that no other content can have, because the engine caches by name and path, and it
    stays while the engine may read it, whatever becomes of the store.

    Raises:
        UserError: the adapter is for another base model, or asks for more than the engine was started for.
        NotFound: nothing is published there.
        DataCorrupt: what is published differs from the reference or its manifest, or is no LoRA adapter.
    """
    if ref.base_model != rules.base.fingerprint:
        raise UserError(
            f"adapter {ref.name} was trained on base model {ref.base_model[:12] or 'unknown'}, this replica "
            f"serves {rules.base.fingerprint[:12]} ({rules.base.path}); load an adapter of this model"
        )
    manifest = read_manifest(ref)
    if manifest.kind is not PublishKind.ADAPTER:
        raise UserError(f"{ref.url} is a published {manifest.kind}; load an adapter")
    if (manifest.version, manifest.base_model) != (ref.version, ref.base_model):
        raise DataCorrupt(
            f"{ref.url}: manifest is of version {manifest.version} and base model {manifest.base_model[:12]}"
        )
    name = f"tandem-v{ref.version:08d}-{ref.sha256[:12]}"
    copy = folder / name
    shutil.rmtree(copy, ignore_errors=True)
    source = read_adapter(ref, cache=folder / "downloads")
    copy.mkdir(parents=True)
    try:
        for name_of_file in (*manifest.files, MANIFEST):  # whatever else lies there is unverified
            shutil.copyfile(source / name_of_file, copy / name_of_file)
        read_adapter(replace(ref, url=str(copy)))  # what counts is what the engine will read
        _check_config(ref, copy / CONFIG, rules)
        max_abs_b = _check_tensors(ref, copy / TENSORS, rules)
    except BaseException:
        shutil.rmtree(copy, ignore_errors=True)
        raise
    return LocalAdapter(ref.version, name, copy, max_abs_b)


def _check_config(ref: AdapterRef, path: Path, rules: AdapterRules) -> None:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        ranks = [int(config["r"]), *map(int, (config.get("rank_pattern") or {}).values())]
        kind = config["peft_type"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
        raise DataCorrupt(f"{ref.url}/{CONFIG}: no LoRA config of peft: {problem!r}") from problem
    if kind != "LORA":
        raise UserError(f"adapter {ref.name} is of type {kind!r}; the engine serves LORA adapters")
    if max(ranks) > rules.max_lora_rank:
        raise UserError(
            f"adapter {ref.name} has rank {max(ranks)} but rollout.engine.max_lora_rank is "
            f"{rules.max_lora_rank}; raise the latter and restart the replica"
        )


def _check_tensors(ref: AdapterRef, path: Path, rules: AdapterRules) -> float:
    """The largest |entry| of all B matrices. Every tensor must belong to a layer where the engine applies
    adapters, because it would leave out any other without a word."""
    endings = tuple(f".{module}" for module in rules.base.lora_modules(rules.vision))
    largest = 0.0
    with safe_open(path, framework="pt") as tensors:
        for key in tensors.keys():  # noqa: SIM118 - not a dictionary
            module, _, part = key.partition(".lora_")
            tower = ".visual." in module
            if not module.endswith(endings) or (tower and not rules.vision):
                hint = "start it with learner.lora.vision=true" if tower and not rules.vision else "train other modules"
                raise UserError(f"adapter {ref.name}: the engine applies no adapter to {module or key}; {hint}")
            if part.startswith("B"):
                largest = max(largest, tensors.get_tensor(key).abs().max().item())
    return largest
