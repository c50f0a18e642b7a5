"""Join an existing Ray cluster, or start a local one for the length of a run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import ray
from ray.exceptions import RayError

from tandem.config import ClusterConfig
from tandem.types import Unavailable, UserError

HEAD_MEM = "head_mem"  # custom resource that marks the high-memory head node
OBJECT_STORE_BYTES = 128 * 2**20  # trajectories and weights travel by gRPC: Ray's store stays nearly empty


def _quiet() -> None:
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's 15 starves the services on a machine that does other work


@contextmanager
def ray_session(config: ClusterConfig, bundles: int) -> Iterator[str]:
    """Connect to Ray; yields the host that services bind to ("" means: each to its own node's address).

    An address in the config or RAY_ADDRESS joins that cluster. Otherwise a local cluster starts, with one logical CPU
    a bundle and the resource that marks the head, whatever this machine really has: two cores run the whole system.

    Raises:
        UserError: the cluster cannot be reached, or `cluster.gpus` asks for GPUs and it has fewer than `bundles`.
        Unavailable: no local cluster came up.
    """
    _quiet()
    address = config.address or os.environ.get("RAY_ADDRESS", "")
    if address:
        try:
            ray.init(address=address, log_to_driver=False, configure_logging=False)
        except (ConnectionError, ValueError, RuntimeError, RayError) as problem:  # RuntimeError: another version of Ray
            raise UserError(
                f"cluster.address {address}: no usable Ray cluster there ({' '.join(str(problem).split())}); "
                "start one or clear it"
            ) from problem
    else:
        _start_local(cpus=max(2, round(bundles * config.cpus_per_worker) + 1))
    try:
        _check(min(config.gpus, bundles))
        yield "" if address else "127.0.0.1"
    finally:
        ray.shutdown()


def _start_local(cpus: int) -> None:
    try:
        ray.init(
            address="local",
            num_cpus=cpus,
            resources={HEAD_MEM: 1},
            include_dashboard=False,
            object_store_memory=OBJECT_STORE_BYTES,
            _node_ip_address="127.0.0.1",
            log_to_driver=False,
            configure_logging=False,
            _temp_dir=os.environ.get("TANDEM_RAY_TEMP_DIR"),
        )
    except Exception as problem:  # where a node does not come up, Ray raises no narrower kind
        ray.shutdown()
        reason = " ".join(str(problem).split())
        raise Unavailable(
            f"Ray did not start here ({reason}); where the machine is only too busy, try again"
        ) from problem


def _check(needed: int) -> None:
    have = ray.cluster_resources()
    gpus = int(have.get("GPU", 0))
    if needed > gpus:
        raise UserError(f"cluster.gpus asks for {needed} GPUs but this Ray cluster has {gpus}; lower it or add nodes")
    if not have.get(HEAD_MEM):
        raise UserError(
            f"no node of this Ray cluster has the resource '{HEAD_MEM}'; "
            f"start its head with --resources='{{\"{HEAD_MEM}\": 1}}'"
        )
