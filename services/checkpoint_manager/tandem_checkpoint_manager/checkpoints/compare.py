"""How large an adapter's modules are, and what differs between two versions."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tandem.storage import CONFIG_FILE, TENSOR_FILE, Published, read_adapter
from tandem.types import PublishKind, UserError
from tandem_checkpoint_manager.checkpoints.arrays import TensorFile, open_tensor_file, row_blocks

A, B = ".lora_A.weight", ".lora_B.weight"


@dataclass(frozen=True, slots=True)
class ModuleNorms:
    """Frobenius norms of A, of B, and of the update (alpha / r) B A that they make."""

    module: str
    a: float
    b: float
    update: float


@dataclass(frozen=True, slots=True)
class Change:
    """A tensor that differs. `difference`: norm of second minus first, `before`: of the first; None where one of them
    is not there or of another shape, as `why` says."""

    name: str
    difference: float | None
    before: float | None
    why: str = ""

    @property
    def share(self) -> float | None:
        """The difference as a share of what was there before."""
        return self.difference / self.before if self.difference is not None and self.before else None


@dataclass(frozen=True, slots=True)
class Difference:
    """All of two versions: tensors that are equal, those that are not, and settings `name: (first, second)`."""

    equal: int
    changes: tuple[Change, ...]
    settings: dict[str, tuple[Any, Any]]


def adapter_config(published: Published, folder: Path) -> dict[str, Any]:
    """PEFT's settings; none for another kind."""
    if published.manifest.kind is not PublishKind.ADAPTER:
        return {}
    return json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))


def lora_scale(config: dict[str, Any]) -> float:
    """What B A is multiplied by."""
    rank = config["r"]
    return config.get("lora_alpha", rank) / (math.sqrt(rank) if config.get("use_rslora") else rank)


def module_norms(published: Published, folder: Path) -> Iterator[ModuleNorms]:
    """Of each module of a verified adapter folder. Raises UserError for another kind."""
    if published.manifest.kind is not PublishKind.ADAPTER:
        raise UserError(f"{published.ref.url}: holds a {published.manifest.kind}; only adapters have such norms")
    scale = lora_scale(adapter_config(published, folder))
    with open_tensor_file(folder / TENSOR_FILE[PublishKind.ADAPTER]) as file:
        for name in sorted(file.header.tensors):
            if name.endswith(A):
                module = name.removesuffix(A)
                a, b = file.rows(name), file.rows(module + B)  # [r, in], [out, r]
                # |B A|^2 is the sum of (B^T B) * (A A^T): r x r instead of out x in
                square = float(((b.T @ b) * (a @ a.T)).sum())
                update = scale * math.sqrt(max(0.0, square))
                short = module.removeprefix("base_model.model.")
                yield ModuleNorms(short, float(np.linalg.norm(a)), float(np.linalg.norm(b)), update)


def compare(first: Published, second: Published) -> Difference:
    """Two versions of one kind, every file verified before. Raises UserError where the kinds differ."""
    kinds = first.manifest.kind, second.manifest.kind
    if kinds[0] is not kinds[1]:
        raise UserError(f"{first.ref.url} holds a {kinds[0]}, {second.ref.url} a {kinds[1]}; compare two of one kind")
    folders = read_adapter(first.ref), read_adapter(second.ref)
    name = TENSOR_FILE[kinds[0]]
    changes: list[Change] = []
    with open_tensor_file(folders[0] / name) as one, open_tensor_file(folders[1] / name) as two:
        names = sorted({*one.header.tensors, *two.header.tensors})
        changes = [change for tensor in names if (change := _change(one, two, tensor))]
    old, new = adapter_config(first, folders[0]), adapter_config(second, folders[1])
    settings = {key: (old.get(key), new.get(key)) for key in sorted({*old, *new}) if old.get(key) != new.get(key)}
    if first.manifest.base_model != second.manifest.base_model:
        settings["base model"] = first.manifest.base_model, second.manifest.base_model
    return Difference(len(names) - len(changes), tuple(changes), settings)


def _change(one: TensorFile, two: TensorFile, name: str) -> Change | None:
    before, after = one.header.tensors.get(name), two.header.tensors.get(name)
    if before is None or after is None:
        return Change(name, None, None, "only in the " + ("second" if before is None else "first"))
    if before.shape != after.shape:
        return Change(name, None, None, f"{list(before.shape)}, then {list(after.shape)}")
    squares = base = 0.0
    for start, stop in row_blocks(before):
        old, new = one.rows(name, start, stop), two.rows(name, start, stop)
        squares += float(np.square(new.astype(np.float64) - old).sum())
        base += float(np.square(old.astype(np.float64)).sum())
    if squares == 0 and before.dtype == after.dtype:
        return None
    why = "" if before.dtype == after.dtype else f"{before.dtype}, then {after.dtype}"
    return Change(name, math.sqrt(squares), math.sqrt(base), why)
