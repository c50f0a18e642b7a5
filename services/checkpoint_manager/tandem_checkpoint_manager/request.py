"""A request to publish: checked, and the files and the manifest that it asks for."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tandem.storage import (
    CONFIG_FILE,
    METADATA_FILE,
    TENSOR_FILE,
    Manifest,
    OpenShard,
    adapter_files,
    check_base,
    joined_pieces,
    measure,
    parse_adapter_config,
    parse_object,
    plan_join,
)
from tandem.types import PublishKind, UserError
from tandem_checkpoint_manager.model_files import base_files


@dataclass(frozen=True, slots=True)
class Request:
    """A checked request to publish."""

    kind: PublishKind
    version: int
    world_size: int
    base_model: str
    config_json: str
    metadata: dict[str, Any]

    @property
    def metadata_file(self) -> dict[str, bytes]:
        """By its name, where the metadata has a file of its own."""
        if self.kind is not PublishKind.STATE:
            return {}
        return {METADATA_FILE: json.dumps(self.metadata, sort_keys=True).encode()}

    @property
    def in_manifest(self) -> dict[str, Any]:
        """The metadata, where it has no file."""
        return {} if self.metadata_file else self.metadata

    @property
    def what(self) -> str:
        """How errors name it."""
        return f"{self.kind} v{self.version}"


def checked(
    kind: PublishKind,
    version: int,
    world_size: int,
    base_model: str,
    adapter_config_json: str,
    metadata_json: str,
) -> Request:
    """A request as it came. Raises UserError for one that is malformed."""
    what = f"{kind} v{version}"
    if world_size < 1 or not base_model:
        raise UserError(f"{what}: world_size {world_size} and base_model {base_model!r} must be given")
    adapter = kind is PublishKind.ADAPTER
    if adapter:
        parse_adapter_config(adapter_config_json, what)
    metadata = parse_object(metadata_json or "{}", f"{what}: metadata_json")
    return Request(kind, version, world_size, base_model, adapter_config_json if adapter else "", metadata)


def files_of(request: Request, shards: list[OpenShard], base_folder: Path) -> dict[str, Iterable[bytes]]:
    """What is to lie in the version's folder beside the manifest, by name. Raises as what joins the shards."""
    if request.kind is PublishKind.ADAPTER:
        return adapter_files(shards, request.base_model, request.config_json, request.what)
    check_base(shards, request.base_model)
    files: dict[str, Iterable[bytes]] = {TENSOR_FILE[request.kind]: joined_pieces(plan_join(shards, request.what))}
    if request.kind is PublishKind.MODEL:
        files |= base_files(base_folder)
    return files | {name: [data] for name, data in request.metadata_file.items()}


def declared(request: Request, present: Manifest) -> Manifest:
    """The manifest as it would be if the tensors, which are no longer staged, were those published."""
    files = dict(present.files)
    if request.kind is PublishKind.ADAPTER:
        files[CONFIG_FILE] = measure([request.config_json.encode()])
    files |= {name: measure([data]) for name, data in request.metadata_file.items()}
    return Manifest(request.kind, request.version, request.base_model, files, request.in_manifest)
