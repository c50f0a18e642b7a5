"""What can be had: SageMaker HyperPod instances and FSx for Lustre file systems. Their makers' public figures:
https://aws.amazon.com/sagemaker/pricing (memory, GPUs), https://docs.aws.amazon.com/fsx (throughput per TiB, sizes)."""

from __future__ import annotations

from dataclasses import dataclass

GIB, GB, TIB, MB = 2**30, 10**9, 2**40, 10**6


@dataclass(frozen=True, slots=True)
class Head:
    """An instance without GPUs; `memory` in bytes."""

    name: str
    memory: int


@dataclass(frozen=True, slots=True)
class Worker:
    """An instance with GPUs; `memory` of the host and `gpu_memory` of each GPU, in bytes."""

    name: str
    memory: int
    gpus: int
    gpu_memory: int


@dataclass(frozen=True, slots=True)
class FileSystem:
    """An FSx for Lustre Persistent-2 file system: MB/s per TiB, and bytes."""

    tier: int
    size: int

    @property
    def bandwidth(self) -> float:
        """MB/s in all."""
        return round(self.tier * self.size / TIB, 1)


_SIZES = (
    *(("ml.m5", size, gib) for size, gib in (("large", 8), ("xlarge", 16), ("2xlarge", 32), ("4xlarge", 64))),
    *(("ml.m5", size, gib) for size, gib in (("8xlarge", 128), ("12xlarge", 192), ("16xlarge", 256))),
    *(("ml.r5d", size, gib) for size, gib in (("large", 16), ("xlarge", 32), ("2xlarge", 64), ("4xlarge", 128))),
    *(("ml.r5d", size, gib) for size, gib in (("8xlarge", 256), ("12xlarge", 384), ("16xlarge", 512))),
)
HEADS = tuple(sorted((Head(f"{family}.{size}", gib * GIB) for family, size, gib in _SIZES), key=lambda h: h.memory))

WORKERS = (
    Worker("ml.g5.12xlarge", 192 * GIB, 4, 24 * GB),
    Worker("ml.g6e.12xlarge", 384 * GIB, 4, 48 * GB),
    Worker("ml.g7e.12xlarge", 512 * GIB, 2, 96 * GB),
    Worker("ml.p4d.24xlarge", 1152 * GIB, 8, 40 * GB),
    Worker("ml.p4de.24xlarge", 1152 * GIB, 8, 80 * GB),
    Worker("ml.p5.48xlarge", 2048 * GIB, 8, 80 * GB),
)

TIERS = (125, 250, 500, 1000)  # MB/s per TiB
SMALLEST, INCREMENT = 12 * TIB // 10, 24 * TIB // 10  # 1.2 TiB, 2.4 TiB and multiples of that


def file_systems(most_increments: int = 40) -> tuple[FileSystem, ...]:
    """All up to a size, the least bandwidth first, and of equal bandwidth the smallest (and cheapest) first."""
    sizes = (SMALLEST, *(INCREMENT * count for count in range(1, most_increments + 1)))
    every = (FileSystem(tier, size) for tier in TIERS for size in sizes)
    return tuple(sorted(every, key=lambda system: (round(system.bandwidth), system.size)))
