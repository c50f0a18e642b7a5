"""Place and start the services of a run; stop them at its end.

Placement: one bundle per pair of rollout replica and learner rank, so that both share a bundle's GPU in halves; the
checkpoint manager sits where the resource `head_mem` is. Replicas and ranks need not be equally many.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from tandem.cluster.host import ServiceHost, result
from tandem.cluster.registry import NAMESPACE, actor_name
from tandem.cluster.session import HEAD_MEM, ray_session
from tandem.config import Config
from tandem.obs import get_logger
from tandem.types import UserError

log = get_logger(__name__)
STOP_S = 20.0
# One compute thread a process; see ARCHITECTURE: two were six times slower than one on two shared cores.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}


@dataclass(frozen=True, slots=True)
class Deployment:
    """Where the services of a run listen (host:port). `learner` and `checkpoint` are empty if not asked for."""

    rollouts: tuple[str, ...]
    learner: str
    checkpoint: str


@contextmanager
def deployed(config: Config, *, training: bool = True, rewind_to: int | None = None) -> Iterator[Deployment]:
    """Start rollout replicas and, for training, learner and checkpoint manager; stop all at the end.

    `rewind_to` is where a resumed run stands: the checkpoint manager forgets what the store holds beyond it.

    Raises:
        UserError: the cluster cannot hold what the config asks for, or a service refused its part of the config.
        TandemError: a service could not start.
    """
    ranks = config.learner.world_size if training else 0
    bundles = max(config.rollout.replicas, ranks)
    with ray_session(config.cluster, bundles) as host:
        group = _reserve(config, bundles)
        hosts: list[Any] = []
        try:
            yield _start(config, training, rewind_to, host, group, hosts)
        finally:
            _stop(hosts)
            remove_placement_group(group)


def _reserve(config: Config, bundles: int) -> PlacementGroup:
    gpus = config.cluster.gpus / bundles
    if gpus and gpus < 1:
        raise UserError(
            f"cluster.gpus is {config.cluster.gpus} for {bundles} replicas or ranks; give each pair a GPU of its own"
        )
    bundle = {"CPU": config.cluster.cpus_per_worker, **({"GPU": int(gpus)} if gpus else {})}
    group = placement_group([bundle] * bundles, strategy="PACK")
    if not group.wait(config.cluster.start_timeout_s):
        remove_placement_group(group)
        raise UserError(
            f"the Ray cluster has no room for {bundles} x {bundle}; it has {ray.available_resources()} free"
        )
    return group


def _start(
    config: Config, training: bool, rewind_to: int | None, host: str, group: PlacementGroup, hosts: list[Any]
) -> Deployment:
    timeout_s = config.cluster.start_timeout_s

    def make(service: str, index: int) -> Any:
        actor = ServiceHost.options(
            name=actor_name(config.run.name, service, index),
            namespace=NAMESPACE,
            runtime_env={"env_vars": ONE_THREAD},
            **_resources(config, service, index, group),
        ).remote(f"tandem_{service}.main", config.model_dump_json(), host)
        hosts.append(actor)
        return actor

    pending: dict[str, Any] = {}
    if training:
        manager = make("checkpoint_manager", 0)
        pending["checkpoint manager"] = manager.start.remote(port=config.cluster.checkpoint_port, rewind_to=rewind_to)
    replicas = [f"rollout replica {index}" for index in range(config.rollout.replicas)]
    for index, name in enumerate(replicas):
        pending[name] = make("rollout", index).start.remote(replica=index)
    if training:
        world = config.learner.world_size
        ranks = [make("learner", rank) for rank in range(world)]
        rendezvous = result(ranks[0].free_address.remote(), timeout_s, "learner rank 0")
        for rank, actor in enumerate(ranks):
            pending[f"learner rank {rank}"] = actor.start.remote(rank=rank, world_size=world, rendezvous=rendezvous)
    addresses = _wait(pending, timeout_s)
    return Deployment(
        rollouts=tuple(addresses[name] for name in replicas),
        learner=addresses.get("learner rank 0", ""),
        checkpoint=addresses.get("checkpoint manager", ""),
    )


def _resources(config: Config, service: str, index: int, group: PlacementGroup) -> dict[str, Any]:
    """The checkpoint manager goes to the head; a replica and a rank of one index share a bundle, half each."""
    if service == "checkpoint_manager":
        return {"num_cpus": 0, "resources": {HEAD_MEM: 0.1}}
    return {
        "num_cpus": config.cluster.cpus_per_worker / 2,
        "num_gpus": 0.5 if config.cluster.gpus else 0,
        "scheduling_strategy": PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index),
    }


def _wait(pending: dict[str, Any], timeout_s: float) -> dict[str, str]:
    """Addresses in the order of `pending`; the first service that fails ends the wait for the others."""
    names = {reference: name for name, reference in pending.items()}
    addresses: dict[str, str] = {}
    waiting = list(names)
    while waiting:
        done, waiting = ray.wait(waiting, num_returns=1, timeout=timeout_s)
        reference = done[0] if done else waiting[0]
        addresses[names[reference]] = result(reference, 0 if done else 0.001, f"start of {names[reference]}")
        log.info("%s is up at %s", names[reference], addresses[names[reference]] or "its rank")
    return {name: addresses[name] for name in pending}


def _stop(hosts: list[Any]) -> None:
    ray.wait([host.stop.remote() for host in hosts], num_returns=len(hosts), timeout=STOP_S) if hosts else None
    for host in hosts:
        ray.kill(host)
