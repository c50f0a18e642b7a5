"""From an adapter, published or sent by the ranks, to a verified folder of the engine's own, with everything checked
that can be before the engine sees it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

from safetensors import safe_open

from tandem.storage import MANIFEST, explained, read_adapter, read_manifest
from tandem.types import AdapterRef, DataCorrupt, PublishKind, Pushed, UserError
from tandem_rollout.base_model import BaseModel
from tandem_rollout.engine import LocalAdapter
from tandem_rollout.inbox import Inbox
from tandem_rollout.own_folder import SETTING

HEADER_BYTES = 64 * 2**20  # of all ranks' shards together, at most; an 8B model's from 64 ranks are 10 MB
NAME = "tandem-v"  # how the names of adapters' folders begin
CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"


@dataclass(frozen=True, slots=True)
class AdapterRules:
    """What the engine was started for."""

    base: BaseModel
    max_lora_rank: int
    vision: bool

    @property
    def most_bytes(self) -> int:
        """The most that an adapter they allow can take: every layer that may carry one, in float32, and headers."""
        endings = tuple(f".{module}.weight" for module in self.base.lora_modules(self.vision))
        entries = 0
        for path in self.base.path.glob("*.safetensors"):
            with safe_open(path, framework="numpy") as file:
                shapes = [file.get_slice(name).get_shape() for name in file.keys() if name.endswith(endings)]  # noqa: SIM118
            entries += sum(self.max_lora_rank * (rows + columns) for rows, columns in shapes)
        return 4 * entries + HEADER_BYTES


def stage_adapter(ref: AdapterRef, rules: AdapterRules, folder: Path) -> LocalAdapter:
    """Copy a published adapter below `folder` and check it. Blocks: call it in a thread.

    The copy has a name that no other content can have, because the engine caches by name and path, and it
    stays while the engine may read it, whatever becomes of the store.

    Raises:
        UserError: the adapter is for another base model, or asks for more than the engine was started for, or `folder`
            takes no more.
        NotFound: nothing is published there.
        DataCorrupt: what is published differs from the reference or its manifest, or is no LoRA adapter.
    """
    _check_base(ref, rules)
    manifest = read_manifest(ref)
    if manifest.kind is not PublishKind.ADAPTER:
        raise UserError(f"{ref.url} is a published {manifest.kind}; load an adapter")
    if (manifest.version, manifest.base_model) != (ref.version, ref.base_model):
        raise DataCorrupt(
            f"{ref.url}: manifest is of version {manifest.version} and base model {manifest.base_model[:12]}"
        )

    def copy(target: Path) -> AdapterRef:
        with TemporaryDirectory(dir=folder, prefix="download-") as cache:
            source = read_adapter(ref, cache=Path(cache))
            for name_of_file in (*manifest.files, MANIFEST):  # whatever else lies there is unverified
                _copy(source / name_of_file, target / name_of_file)
        read_adapter(replace(ref, url=str(target)))  # what counts is what the engine will read
        return ref

    return _stage(copy, rules, folder)


def join_adapter(ref: AdapterRef, pushed: Pushed, inbox: Inbox, rules: AdapterRules, folder: Path) -> LocalAdapter:
    """As `stage_adapter`, of what the ranks have sent: nothing is read from a store. Raises as `Inbox.join`, too."""
    _check_base(ref, rules)
    return _stage(lambda target: inbox.join(ref, pushed, target), rules, folder)


def _stage(fill: Callable[[Path], AdapterRef], rules: AdapterRules, folder: Path) -> LocalAdapter:
    """Have `fill` write an adapter to a new folder, check it, and give the folder its name."""
    new = folder / f"incoming-{uuid4().hex}"
    with explained(f"making an adapter's folder in {folder}", writing=True, setting=SETTING):
        new.mkdir(parents=True)
        try:
            ref = fill(new)
            _check_config(ref, new / CONFIG, rules)
            largest_b = _check_tensors(ref, new / TENSORS, rules)
            name = f"{NAME}{ref.version:08d}-{ref.sha256[:12]}"
            # of equal name is equal content, and the engine may be reading it
            if not (folder / name).exists():
                new.rename(folder / name)
        finally:
            shutil.rmtree(new, ignore_errors=True)
    return LocalAdapter(ref.version, name, folder / name, ref.sha256, largest_b)


def _copy(source: Path, target: Path) -> None:
    with (
        explained(f"reading {source}"),
        open(source, "rb") as file,  # the store may have let it go meanwhile
        explained(f"writing {target}", writing=True, setting=SETTING),
        open(target, "xb") as copy,
    ):
        shutil.copyfileobj(file, copy, 2**20)


def _check_base(ref: AdapterRef, rules: AdapterRules) -> None:
    if ref.base_model != rules.base.fingerprint:
        raise UserError(
            f"adapter {ref.name} was trained on base model {ref.base_model[:12] or 'unknown'}, this replica "
            f"serves {rules.base.fingerprint[:12]} ({rules.base.path}); load an adapter of this model"
        )


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


def _check_tensors(ref: AdapterRef, path: Path, rules: AdapterRules) -> dict[str, float]:
    """The largest |entry| of each B matrix, by tensor name. Every tensor must belong to a layer where the engine
    applies adapters, because it would leave out any other without a word."""
    endings = tuple(f".{module}" for module in rules.base.lora_modules(rules.vision))
    largest: dict[str, float] = {}
    with safe_open(path, framework="pt") as tensors:
        for key in tensors.keys():  # noqa: SIM118 - not a dictionary
            module, _, part = key.partition(".lora_")
            tower = ".visual." in module
            if not module.endswith(endings) or (tower and not rules.vision):
                hint = "start it with learner.lora.vision=true" if tower and not rules.vision else "train other modules"
                raise UserError(f"adapter {ref.name}: the engine applies no adapter to {module or key}; {hint}")
            if part.startswith("B"):
                largest[key] = tensors.get_tensor(key).abs().max().item()
    return largest
