"""Place and start the services of a run; stop them at its end.

Placement: one bundle per pair of rollout replica and learner rank, so that both share a bundle's GPU in halves; the
checkpoint manager sits where the resource `head_mem` is. Replicas and ranks need not be equally many.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from tandem.cluster.host import ServiceHost, result
from tandem.cluster.registry import NAMESPACE, actor_name, find
from tandem.cluster.session import HEAD_MEM, ray_session
from tandem.config import Config
from tandem.obs import get_logger
from tandem.rpc.keyring import Keyring, open_keyring
from tandem.types import Identity, Role, UserError

log = get_logger(__name__)
STOP_S = 20.0
# One compute thread a process; see ARCHITECTURE: two were six times slower than one on two shared cores.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}


@dataclass(frozen=True, slots=True)
class Deployment:
    """Where the services of a run listen (host:port); empty what was not asked for."""

    rollouts: tuple[str, ...]
    learner: str
    checkpoint: str
    keyring: Keyring


@contextmanager
def deployed(
    config: Config, run: str, *, rollouts: bool = True, training: bool = True, rewind_to: int | None = None
) -> Iterator[Deployment]:
    """Start rollout replicas, and for training learner and checkpoint manager; stop all at the end.

    `run` names the actors on the cluster. `rewind_to` is where a resumed run stands: the checkpoint manager forgets
    what the store holds beyond it.

    Raises:
        UserError: the cluster cannot hold what the config asks for, or a service refused its part of the config.
        TandemError: a service could not start.
    """
    replicas, ranks = (config.rollout.replicas if rollouts else 0), (config.learner.world_size if training else 0)
    bundles = max(replicas, ranks)
    if config.cluster.gpus not in (0, bundles):
        raise UserError(
            f"cluster.gpus is {config.cluster.gpus} but {replicas} replicas and {ranks} ranks need {bundles}, one for "
            "each pair; set it to that, or to 0 for CPU"
        )
    with ray_session(config.cluster, bundles) as host:
        keyring = open_keyring(config.security, loopback=bool(host))
        group = _reserve(config, bundles)
        hosts: list[Any] = []
        try:
            _start(config, run, replicas, ranks, rewind_to, host, keyring, group, hosts)
            learner, checkpoint = (
                (find(run, "learner")[0], find(run, "checkpoint_manager")[0]) if training else ("", "")
            )
            yield Deployment(find(run, "rollout") if rollouts else (), learner, checkpoint, keyring)
        finally:
            _stop(hosts)
            remove_placement_group(group)


def _reserve(config: Config, bundles: int) -> PlacementGroup:
    cpus = config.cluster.cpus_per_worker
    if (have := ray.cluster_resources().get("CPU", 0)) < cpus * bundles:
        raise UserError(
            f"{bundles} replicas or ranks of cluster.cpus_per_worker {cpus:g} do not fit: "
            f"the Ray cluster has {have:g} CPUs"
        )
    bundle = {"CPU": cpus, **({"GPU": 1} if config.cluster.gpus else {})}
    group = placement_group([bundle] * bundles, strategy="PACK")
    if not group.wait(config.cluster.start_timeout_s):
        remove_placement_group(group)
        free = {name: amount for name, amount in ray.available_resources().items() if name in bundle}
        raise UserError(f"the Ray cluster has no room now for {bundles} x {bundle}; free are {free}")
    return group


def _start(
    config: Config,
    run: str,
    replicas: int,
    ranks: int,
    rewind_to: int | None,
    host: str,
    keyring: Keyring,
    group: PlacementGroup,
    hosts: list[Any],
) -> None:
    until = time.monotonic() + config.cluster.start_timeout_s

    def make(service: str, index: int) -> Any:
        door = keyring.door(Identity(Role(service), index, 1))
        try:
            actor = ServiceHost.options(
                name=actor_name(run, service, index),
                namespace=NAMESPACE,
                runtime_env={"env_vars": ONE_THREAD},
                **_resources(config, service, index, group),
            ).remote(f"tandem_{service}.main", config.model_dump_json(), host, door)
        except ValueError as problem:  # Ray's word for a name that is taken
            raise UserError(f"run {run} is on this cluster already; stop it or choose another run.name") from problem
        hosts.append(actor)
        return actor

    pending: dict[str, Any] = {}
    if ranks:
        port = config.cluster.checkpoint_port
        pending["checkpoint manager"] = make("checkpoint_manager", 0).start.remote(port=port, rewind_to=rewind_to)
        actors = [make("learner", rank) for rank in range(ranks)]
        rendezvous = result(actors[0].free_address.remote(), until, "learner rank 0")
        for rank, actor in enumerate(actors):
            pending[f"learner rank {rank}"] = actor.start.remote(rank=rank, world_size=ranks, rendezvous=rendezvous)
    if config.cluster.gpus:
        _wait(pending, until)  # the engine takes its share of what the learner leaves of a GPU they share
        pending = {}
    for index in range(replicas):
        pending[f"rollout replica {index}"] = make("rollout", index).start.remote(replica=index)
    _wait(pending, until)


def _resources(config: Config, service: str, index: int, group: PlacementGroup) -> dict[str, Any]:
    """The checkpoint manager goes to the head; a replica and a rank of one index share a bundle, half each."""
    if service == "checkpoint_manager":
        return {"num_cpus": 0, "resources": {HEAD_MEM: 0.1}}
    return {
        "num_cpus": config.cluster.cpus_per_worker / 2,
        "num_gpus": 0.5 if config.cluster.gpus else 0,
        "scheduling_strategy": PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index),
    }


def _wait(pending: dict[str, Any], until: float) -> None:
    """Wait for all; the first service that fails ends the wait for the others."""
    names = {reference: name for name, reference in pending.items()}
    waiting = list(names)
    while waiting:
        done, waiting = ray.wait(waiting, num_returns=1, timeout=max(0.0, until - time.monotonic()))
        reference = done[0] if done else waiting[0]
        address = result(reference, until, f"start of {names[reference]}")
        log.info("%s is up%s", names[reference], f" at {address}" if address else "")


def _stop(hosts: list[Any]) -> None:
    if hosts:
        ray.wait([host.stop.remote() for host in hosts], num_returns=len(hosts), timeout=STOP_S)
    for host in hosts:
        ray.kill(host)
