"""What lies in a store and under which names.

<url>/adapters/v00000012/{adapter_config.json, adapter_model.safetensors, manifest.json}
<url>/adapters/latest.json
<url>/models/v00000012/{config.json, model.safetensors, tokenizer.json, ..., manifest.json}
<url>/models/latest.json
<url>/states/v00000012/{training_state.safetensors, metadata.json, manifest.json}
<url>/states/latest.json
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import TypeAdapter

from tandem.storage.parse import parse_json
from tandem.storage.tensors import Natural
from tandem.types import AdapterRef, DataCorrupt, PublishKind

MANIFEST = "manifest.json"
POINTER = "latest.json"
FORMAT = 1
FOLDER = {PublishKind.ADAPTER: "adapters", PublishKind.MODEL: "models", PublishKind.STATE: "states"}
TENSOR_FILE = {
    PublishKind.ADAPTER: "adapter_model.safetensors",
    PublishKind.MODEL: "model.safetensors",
    PublishKind.STATE: "training_state.safetensors",
}
CONFIG_FILE = "adapter_config.json"
MODEL_CONFIG_FILE = "config.json"
METADATA_FILE = "metadata.json"  # of a state: what is kept of a run grows with it, and manifests are read often
REQUIRED = {
    PublishKind.ADAPTER: (CONFIG_FILE, TENSOR_FILE[PublishKind.ADAPTER]),
    PublishKind.MODEL: (MODEL_CONFIG_FILE, TENSOR_FILE[PublishKind.MODEL]),
    PublishKind.STATE: (TENSOR_FILE[PublishKind.STATE],),
}
_VERSION = re.compile(r"v(\d{8,})")


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file: sha256 (hex) and size in bytes."""

    sha256: str
    size: Natural


@dataclass(frozen=True, slots=True)
class Manifest:
    """The description of a published folder, written after its files. `metadata` is the publisher's own; of a state it
    is in a file, where an earlier version of Tandem did not leave it here: see `readers.read_metadata`."""

    kind: PublishKind
    version: Natural
    base_model: str
    files: Mapping[str, FileEntry]
    metadata: Mapping[str, Any]
    format: int = FORMAT

    def encode(self) -> bytes:
        """As stored: canonical JSON with a checksum of the rest, so that equal content is equal bytes."""
        return _encode({**asdict(self), "checksum": _checksum(asdict(self))})

    def ref(self, url: str) -> AdapterRef:
        """The reference to this folder at `url`."""
        return AdapterRef(
            version=self.version,
            url=url,
            sha256=hashlib.sha256(self.encode()).hexdigest(),
            name=f"tandem-{version_name(self.version)}",
            base_model=self.base_model,
            size=sum(entry.size for entry in self.files.values()),
        )


@dataclass(frozen=True, slots=True)
class Pointer:
    """Names the latest version and the sha256 of its manifest."""

    version: Natural
    sha256: str

    def encode(self) -> bytes:
        """As stored."""
        return _encode(asdict(self))


@dataclass(frozen=True, slots=True)
class _Stored(Manifest):
    checksum: str = ""


_STORED = TypeAdapter(_Stored)
_POINTER = TypeAdapter(Pointer)


def parse_manifest(data: bytes, what: str) -> Manifest:
    """Read manifest.json; `what` names the file.

    Raises:
        DataCorrupt: no manifest, of another format, changed since it was written, or without a file of its kind:
            what no manifest lists would be read unverified.
    """
    stored = parse_json(_STORED, data, what)
    if stored.format != FORMAT:
        raise DataCorrupt(f"{what}: manifest format {stored.format} is not known here, only {FORMAT}")
    manifest = Manifest(stored.kind, stored.version, stored.base_model, stored.files, stored.metadata)
    if manifest.encode() != data:
        raise DataCorrupt(f"{what}: does not match its own checksum")
    if unsafe := [name for name in manifest.files if "/" in name or name in ("", "..", MANIFEST)]:
        raise DataCorrupt(f"{what}: names the file {unsafe[0]!r}, which is none of this folder")
    if missing := [name for name in REQUIRED[manifest.kind] if name not in manifest.files]:
        raise DataCorrupt(f"{what}: does not list {missing[0]}, without which there is no {manifest.kind}")
    return manifest


def parse_pointer(data: bytes, what: str) -> Pointer:
    """Read latest.json. Raises DataCorrupt where it is none."""
    return parse_json(_POINTER, data, what)


def version_name(version: int) -> str:
    """The folder of a version: v00000012."""
    return f"v{version:08d}"


def version_path(kind: PublishKind, version: int) -> str:
    """The folder of a version, from the store's root: adapters/v00000012."""
    return f"{FOLDER[kind]}/{version_name(version)}"


def parse_version(name: str) -> int | None:
    """The version of a folder name; None for names that are not ours."""
    match = _VERSION.fullmatch(name)
    return int(match[1]) if match and version_name(int(match[1])) == name else None


def _checksum(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(_encode(content)).hexdigest()


def _encode(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, indent=1, sort_keys=True, allow_nan=False).encode() + b"\n"
