"""The ranks' process group: which device, which backend, and the few reductions that the learner needs."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from tandem.config import Config
from tandem.types import Unavailable, UserError


@dataclass(frozen=True)
class Comm:
    """This rank among all ranks. Reductions are collectives: every rank calls them, in the same order."""

    rank: int
    world_size: int
    device: torch.device
    mesh: DeviceMesh

    def sums(self, values: Mapping[str, float]) -> dict[str, float]:
        """Each value summed over ranks."""
        return self._reduce(values, dist.ReduceOp.SUM)

    def total(self, values: torch.Tensor) -> torch.Tensor:
        """A tensor summed over ranks, entry by entry, on the CPU."""
        summed = values.to(self.device)
        dist.all_reduce(summed)
        return summed.cpu()

    def largest(self, values: Mapping[str, float]) -> dict[str, float]:
        """Each value's largest over ranks."""
        return self._reduce(values, dist.ReduceOp.MAX)

    def _reduce(self, values: Mapping[str, float], op: dist.ReduceOp.RedOpType) -> dict[str, float]:
        packed = torch.tensor(list(values.values()), dtype=torch.float64, device=self.device)
        dist.all_reduce(packed, op)
        return dict(zip(values, packed.tolist(), strict=True))


def open_comm(config: Config, rank: int, world_size: int, store: dist.Store) -> Comm:
    """Join the process group (NCCL on GPUs, gloo on CPU) and build the mesh. Blocks until all ranks are
    there.

    Raises:
        UserError: GPUs are configured where CUDA finds none.
        Unavailable: the other ranks did not come in time.
    """
    device = choose_device(config, rank)
    timeout = timedelta(seconds=config.learner.collective_timeout_s)
    if device.type == "cpu" and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)  # a second thread makes small models slower, several times so where cores are shared
    try:
        dist.init_process_group(
            "nccl" if device.type == "cuda" else "gloo",
            store=dist.PrefixStore("group", store),
            rank=rank,
            world_size=world_size,
            timeout=timeout,
            device_id=device if device.type == "cuda" else None,
        )
        mesh = init_device_mesh(device.type, (world_size,))
    except dist.DistError as problem:
        raise Unavailable(f"learner rank {rank}: the {world_size} ranks did not meet: {problem}") from problem
    return Comm(rank, world_size, device, mesh)


def close_comm() -> None:
    """Leave the process group."""
    if dist.is_initialized():
        dist.destroy_process_group()


def choose_device(config: Config, rank: int) -> torch.device:
    """CPU where the cluster has no GPUs, else this process's GPU. Raises UserError where CUDA finds none."""
    if config.cluster.gpus == 0:
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise UserError(
            f"cluster.gpus is {config.cluster.gpus} but learner rank {rank} finds no CUDA device; set it to 0 for CPU"
        )
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def place(rendezvous: str, world_size: int) -> tuple[str, int]:
    """Host and port of the ranks' store. Raises UserError where it names none."""
    host, _, port = rendezvous.rpartition(":")
    if not host or not port.isdigit():
        raise UserError(
            f"learner rendezvous {rendezvous!r}: give host:port of rank 0, the same to all {world_size} ranks"
        )
    return host, int(port)


def open_store(rank: int, world_size: int, rendezvous: str, timeout_s: float, *, serve: bool = False) -> dist.Store:
    """A client of the ranks' key-value store at `rendezvous`; rank 0's first one has to `serve` it.

    One rank needs no server. Each client is one connection: a blocking wait on it holds up nobody else's. The server
    listens at that host alone, and lives as long as any of rank 0's clients.

    Raises:
        UserError: no usable rendezvous.
        Unavailable: nobody serves there, or rank 0 cannot.
    """
    if world_size == 1:
        return dist.HashStore()
    host, port = place(rendezvous, world_size)
    try:
        return dist.TCPStore(
            host,
            port,
            is_master=rank == 0,
            timeout=timedelta(seconds=timeout_s),
            wait_for_workers=False,
            multi_tenant=True,
            master_listen_fd=_listening(host, port).detach() if serve and rank == 0 else None,
        )
    except OSError as problem:
        raise Unavailable(
            f"learner rank 0 cannot serve the ranks' store at {rendezvous}, the port may be taken: start all ranks "
            f"again with another rendezvous ({problem})"
        ) from problem
    except dist.DistError as problem:
        raise Unavailable(f"learner rank {rank}: no rank 0 at {rendezvous}: {problem}") from problem


def _listening(host: str, port: int) -> socket.socket:
    """Whoever picked the port may hold it, bound with SO_REUSEADDR, until now: nobody else gets it meanwhile."""
    return socket.create_server((host, port), backlog=128)
