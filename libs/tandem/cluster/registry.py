"""Where services listen. Ray's directory of named actors is the registry: no port is fixed, a restart re-registers."""

from __future__ import annotations

import time
from typing import Any

import ray

from tandem.cluster.host import result
from tandem.types import NotFound

NAMESPACE = "tandem"
LOOKUP_S = 30.0


def actor_name(run: str, service: str, index: int) -> str:
    """The name under which a service's actor is registered."""
    return f"{run}:{service}:{index}"


def find(run: str, service: str) -> tuple[str, ...]:
    """Addresses (host:port) of a run's service, by index; "" for one that serves none. Needs a connection to Ray.

    Raises:
        NotFound: the run has no such service on this cluster.
    """
    prefix = actor_name(run, service, 0)[:-1]
    entries: list[Any] = ray.util.list_named_actors(all_namespaces=True)  # dicts, whatever its annotation says
    named = [entry["name"] for entry in entries if entry["namespace"] == NAMESPACE]
    found = sorted((name for name in named if name.startswith(prefix)), key=lambda name: int(name[len(prefix) :]))
    if not found:
        raise NotFound(f"run {run} has no service '{service}' on this cluster")
    actors = [ray.get_actor(name, namespace=NAMESPACE) for name in found]
    until = time.monotonic() + LOOKUP_S
    return tuple(
        result(actor.address.remote(), until, f"address of {name}") for actor, name in zip(actors, found, strict=True)
    )
