"""A published version as a folder of its own, written under another name and renamed when it is whole.

Merged, it is the base model with W + (alpha / r) B A for each adapted W: the base's own files, copied tensor by tensor,
the adapted ones computed in float32, a block of rows at a time, and rounded to the base's dtype.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np

from tandem.model.folder import fingerprint, model_folder
from tandem.storage import MANIFEST, TENSOR_FILE, BlobStore, Published, explained, measure, read_adapter
from tandem.storage.hashing import read_pieces
from tandem.storage.versions import check_entry
from tandem.types import DataCorrupt, NotFound, PublishKind, UserError
from tandem_checkpoint_manager.checkpoints.arrays import (
    BLOCK_BYTES,
    TensorFile,
    from_float32,
    open_tensor_file,
    row_blocks,
    row_shape,
)
from tandem_checkpoint_manager.checkpoints.compare import A, B, adapter_config, lora_scale
from tandem_checkpoint_manager.model_files import NEEDED, OPTIONAL

PREFIX = "base_model.model."
INDEX = "model.safetensors.index.json"
# What makes of an adapter more than B A beside linear layers; peft can merge those, with all in memory.
BEYOND = ("rank_pattern", "alpha_pattern", "use_dora", "modules_to_save", "fan_in_fan_out", "layer_replication")


def export_folder(published: Published, target: Path) -> None:
    """The folder as it was published, manifest included, every file verified on the way.

    Raises:
        UserError: the target exists or cannot be written.
        DataCorrupt: a file is missing or damaged; nothing is left of the target then.
    """
    blobs = BlobStore(published.ref.url)
    with _new_folder(target) as folder:
        for name, entry in published.manifest.files.items():
            try:
                with blobs.open_read(name) as source, _written(folder / name) as copy:
                    check_entry(measure(read_pieces(source), copy.write), entry, blobs.url_of(name))
            except NotFound as problem:
                raise DataCorrupt(f"{blobs.url_of(name)}: missing") from problem
        with _written(folder / MANIFEST) as copy:
            copy.write(published.manifest.encode())


def export_merged(published: Published, base: Path, target: Path) -> int:
    """The base model with the adapter merged; how many weights that changed.

    Raises:
        UserError: it is no adapter, or one that cannot be merged so; `base` is not the model it was trained on; the
            target exists or cannot be written.
        DataCorrupt: a file of adapter or base is damaged.
    """
    if published.manifest.kind is not PublishKind.ADAPTER:
        raise UserError(f"{published.ref.url}: holds a {published.manifest.kind}; only adapters are merged")
    _refuse_existing(target)
    here, trained_on = fingerprint(model_folder(base)), published.manifest.base_model
    if here != trained_on:
        raise UserError(
            f"{published.ref.url}: was trained on base model {trained_on[:12]}..., but --model {base} "
            f"is {here[:12]}...; give the folder it was trained on"
        )
    adapter = read_adapter(published.ref)
    config = adapter_config(published, adapter)
    if odd := [name for name in BEYOND if config.get(name)]:
        raise UserError(f"{published.ref.url}: {odd[0]} is {config[odd[0]]!r}; merge such an adapter with peft")
    with open_tensor_file(adapter / TENSOR_FILE[PublishKind.ADAPTER]) as lora, _new_folder(target) as folder:
        updates = _updates(lora, published.ref.url)
        for name in (*NEEDED, *OPTIONAL, INDEX):
            if (base / name).is_file():
                with _written(folder / name) as copy:
                    copy.write((base / name).read_bytes())
        merged = set[str]()
        for path in sorted(base.glob("*.safetensors")):
            with open_tensor_file(path) as source, _written(folder / path.name) as copy:
                mine = {name: updates[name] for name in source.header.tensors if name in updates}
                for piece in _merged(source, lora, mine, lora_scale(config)):
                    copy.write(piece)
                merged |= set(mine)
        if missing := sorted(set(updates) - merged):
            raise UserError(f"{published.ref.url}: adapts {missing[0]}, which the base model {base} does not have")
    return len(merged)


def _updates(lora: TensorFile, what: str) -> Mapping[str, str]:
    """The weight that each module of the adapter changes, and the module."""
    names = set(lora.header.tensors)
    modules = {name.removesuffix(A) for name in names if name.endswith(A)}
    if odd := sorted(names - {module + part for module in modules for part in (A, B)}):
        raise UserError(f"{what}: holds {odd[0]}, which is no A or B of a linear layer; merge it with peft")
    return {f"{module.removeprefix(PREFIX)}.weight": module for module in modules}


def _merged(source: TensorFile, lora: TensorFile, updates: Mapping[str, str], scale: float) -> Iterator[bytes]:
    """The base's file from its first byte to its last, adapted weights changed."""
    yield os.pread(source.fd, source.header.data_start, 0)
    for name, entry in sorted(source.header.tensors.items(), key=lambda item: item[1].data_offsets):
        start, stop = entry.data_offsets
        if name not in updates:
            for at in range(start, stop, BLOCK_BYTES):
                yield source.read(at, min(BLOCK_BYTES, stop - at))
            continue
        a, b = lora.rows(updates[name] + A), lora.rows(updates[name] + B)  # [r, in], [out, r]
        if (b.shape[0], a.shape[1]) != row_shape(entry):
            raise DataCorrupt(
                f"{lora.path}: {updates[name]} is for {[len(b), a.shape[1]]}, not for {list(entry.shape)}"
            )
        for first, last in row_blocks(entry):
            update = np.float32(scale) * (b[first:last] @ a)
            yield from_float32(source.rows(name, first, last) + update, entry.dtype)


def _refuse_existing(target: Path) -> None:
    if target.exists() or target.is_symlink():
        raise UserError(f"{target} exists; choose another folder to write")


@contextmanager
def _new_folder(target: Path) -> Iterator[Path]:
    """A folder to fill, which becomes `target` when the body ends well and else goes."""
    _refuse_existing(target)
    partial = target.with_name(f".{target.name}-{uuid4().hex[:12]}")
    with explained(f"writing {target}", writing=True, setting="the folder"):
        target.parent.mkdir(parents=True, exist_ok=True)
        partial.mkdir()
        try:
            yield partial
            _sync(partial)
            _refuse_existing(target)
            os.rename(partial, target)
            _sync(target.parent)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def _written(path: Path) -> Iterator[Any]:
    """A new file, on disk when the body ends."""
    with open(path, "xb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
