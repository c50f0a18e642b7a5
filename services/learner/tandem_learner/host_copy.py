"""A rank's shard as it was at one version, copied to host memory: training goes on while it is hashed and sent.

The memory is laid out as the data of the shard's file: each tensor is copied to its place in it, and the file goes out
from there without a second copy. It is used again for every snapshot of a kind, so that the pages of fresh memory are
paid for once (measured: the first copy takes five times as long as later ones, or more), and pinned where it is copied
to from a GPU.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from tandem.storage import CHUNK_BYTES, ShardMeta
from tandem.storage.tensors import layout
from tandem.types import DataCorrupt, PublishKind, ShardRef

DTYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.uint8: "U8"}


@dataclass(frozen=True)
class HostCopy:
    """A shard's tensors in host memory until the next copy of the kind; they lie in `data`, uint8 [bytes]."""

    meta: ShardMeta
    data: Tensor
    tensors: Mapping[str, Tensor]


@dataclass(frozen=True)
class ShardFile:
    """A shard as the safetensors file that is sent: `head`, then `data`. May be read any number of times."""

    ref: ShardRef
    head: bytes
    data: memoryview

    def chunks(self) -> Iterator[bytes]:
        """The file in order, in pieces of at most `CHUNK_BYTES`."""
        for part in (memoryview(self.head), self.data):
            for start in range(0, len(part), CHUNK_BYTES):
                yield bytes(part[start : start + CHUNK_BYTES])


class HostMemory:
    """What copies are made into: one region a kind."""

    def __init__(self, device: torch.device) -> None:
        self._pinned = device.type == "cuda"
        self._regions: dict[PublishKind, tuple[Tensor, dict[str, Tensor]]] = {}

    def copy(self, tensors: Mapping[str, Tensor], meta: ShardMeta) -> HostCopy:
        """Copy a shard's tensors, of `DTYPES`, over the copy of the same kind before."""
        data, views = self._regions.get(meta.kind, (torch.empty(0), {}))
        if {name: view.shape for name, view in views.items()} != {name: t.shape for name, t in tensors.items()}:
            data, views = self._regions[meta.kind] = _region(tensors, self._pinned)
        for name, tensor in tensors.items():
            views[name].copy_(tensor.detach(), non_blocking=self._pinned)
        if self._pinned:
            torch.cuda.synchronize()
        return HostCopy(meta, data, views)


def shard_file(copy: HostCopy, generation: int = 0) -> ShardFile:
    """Check, describe and hash a copy, of a rank of this generation. Takes seconds where it is large, and no lock: run
    it in a thread.

    Raises:
        DataCorrupt: a number is not finite: an update has overflowed, and the policy is lost.
    """
    meta = copy.meta
    for name, tensor in copy.tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise DataCorrupt(
                f"version {meta.version} is lost, {name} is not finite: nothing of it is published; "
                "resume from the last saved state with a lower learner.lr"
            )
    head, _ = _layout(copy.tensors, meta.to_metadata())
    data = memoryview(copy.data.numpy()).toreadonly()  # pyright: ignore[reportArgumentType] - arrays are buffers
    digest = hashlib.sha256(head)
    digest.update(data)
    size = len(head) + len(data)
    ref = ShardRef(meta.kind, meta.version, meta.rank, meta.world_size, digest.hexdigest(), size, generation)
    return ShardFile(ref, head, data)


def _layout(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> tuple[bytes, tuple[str, ...]]:
    return layout({name: (DTYPES[t.dtype], tuple(t.shape)) for name, t in tensors.items()}, metadata)


def _region(tensors: Mapping[str, Tensor], pinned: bool) -> tuple[Tensor, dict[str, Tensor]]:
    """Memory for the tensors, uint8 [bytes], and each one's place in it."""
    data = torch.empty(sum(t.nbytes for t in tensors.values()), dtype=torch.uint8, pin_memory=pinned)
    views, start = {}, 0
    for name in _layout(tensors, {})[1]:
        tensor = tensors[name]
        stop = start + math.prod(tensor.shape) * tensor.itemsize
        views[name] = data[start:stop].view(tensor.dtype).view(tensor.shape)
        start = stop
    return data, views
