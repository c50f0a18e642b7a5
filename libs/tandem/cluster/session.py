"""Join an existing Ray cluster, or start a local one for the length of a run."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import ray
from ray.exceptions import RayError

from tandem.cluster.books import asked
from tandem.config import ClusterConfig
from tandem.obs import get_logger
from tandem.runtime import poll
from tandem.types import Unavailable, UserError

log = get_logger(__name__)
CONNECT_S, AGAIN_S = 5.0, 2.0  # to connect to the head at all; between two attempts
HEAD_MEM = "head_mem"  # custom resource that marks the high-memory head node
OBJECT_STORE_BYTES = 128 * 2**20  # trajectories and weights travel by gRPC: Ray's store stays nearly empty


def _quiet() -> None:
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's 15 starves the services on a machine that does other work


@contextmanager
def ray_session(config: ClusterConfig, bundles: int, patience_s: float = 0.0) -> Iterator[str]:
    """Connect to Ray; yields the host that services bind to ("" means: each to its own node's address).

    An address in the config or RAY_ADDRESS joins that cluster. Otherwise a local cluster starts, with one logical CPU
    a bundle and the resource that marks the head, whatever this machine really has: two cores run the whole system.

    Args:
        patience_s: a cluster that is named, and is not there, may come back for so long.
    Raises:
        UserError: the cluster cannot be reached, or `cluster.gpus` asks for GPUs and it has fewer than `bundles`.
        Unavailable: no local cluster came up.
    """
    _quiet()
    address = config.address or os.environ.get("RAY_ADDRESS", "")
    if address:
        _join(address, patience_s)
    else:
        _start_local(cpus=max(2, round(bundles * config.cpus_per_worker) + 1))
    try:
        settled(partial(_check, min(config.gpus, bundles)), patience_s)
        yield "" if address else "127.0.0.1"
    finally:
        ray.shutdown()


def settled(check: Callable[[], None], patience_s: float) -> None:
    """A check that may fail for so long, while nodes join. Raises the last UserError."""

    def passed() -> UserError | bool | None:
        nonlocal problem
        try:
            with asked("what the Ray cluster has"):
                check()
        except UserError as failed:
            if patience_s and not problem:
                log.warning("waited for: %s", failed)
            problem = failed
            return None
        return True

    problem: UserError | None = None
    if not poll(passed, every_s=AGAIN_S, for_s=patience_s) and problem:
        raise problem


def _join(address: str, patience_s: float) -> None:
    def joined() -> bool | None:
        nonlocal problem
        try:
            _connect(address)
        except (OSError, ValueError, RuntimeError, RayError, SystemExit) as failed:  # RuntimeError: another Ray version
            ray.shutdown()
            if patience_s and not problem:
                log.warning("no Ray cluster at %s yet: waited for", address)
            problem = failed
            return None
        return True

    problem: BaseException | None = None
    if not poll(joined, every_s=AGAIN_S, for_s=patience_s):
        raise UserError(
            f"cluster.address {address}: no usable Ray cluster there ({' '.join(str(problem).split())}); "
            "start one or clear it"
        ) from problem


def _connect(address: str) -> None:
    host, _, port = address.rpartition(":")
    if host and "/" not in host:  # where nobody listens Ray tries for three minutes, then ends the process
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
    ray.init(address=address, log_to_driver=False, configure_logging=False)


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
