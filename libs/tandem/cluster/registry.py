"""Where services listen. Ray's directory of named actors is the registry: no port is fixed, a restart re-registers.

A run belongs to one controller, the Ray driver that owns its actors. Actors of a dead controller are cleared away.
"""

from __future__ import annotations

import time
from typing import Any

import ray
from ray._private import state  # what Ray itself shows of jobs and actors without a dashboard
from ray.experimental import internal_kv

from tandem.cluster.books import asked
from tandem.cluster.host import result
from tandem.runtime import poll
from tandem.types import NotFound, Role, TandemError, Unavailable, UserError

NAMESPACE = "tandem"
LOOKUP_S = 30.0
GONE_S = 30.0  # for an actor that was killed, or the driver that owned it, to be off Ray's books
DRIVER_S = 5.0  # for Ray to hear of the end of a driver that has just died

NODE_LOST_S = 40.0  # for Ray to hear of the end of the driver's node: 15 s with its own settings


def actor_name(run: str, service: str, index: int) -> str:
    """The name under which a service's actor is registered."""
    return f"{run}:{service}:{index}"


def find(run: str, service: str) -> tuple[str, ...]:
    """Addresses (host:port) of a run's service, by index; "" for one that serves none. Needs a connection to Ray.

    Raises:
        NotFound: the run has no such service on this cluster.
        Unavailable: Ray's head is away, or an actor does not answer.
    """
    prefix = actor_name(run, service, 0)[:-1]
    found = sorted(_named(prefix), key=lambda name: int(name[len(prefix) :]))
    if not found:
        raise NotFound(f"run {run} has no service '{service}' on this cluster")
    actors = [(name, _actor(name)) for name in found]
    until = time.monotonic() + LOOKUP_S
    return tuple(result(actor.address.remote(), until, f"address of {name}") for name, actor in actors if actor)


def take_over(run: str, patience_s: float = DRIVER_S) -> None:
    """Clear away what a dead controller of this run has left on the cluster. Ray hears of its death within
    `patience_s`: of a driver's at once, of a node's when that is missed.

    Raises:
        UserError: its controller lives.
        Unavailable: Ray's head is away, or does not let go of an actor.
    """
    names = set(_named(f"{run}:"))
    if not names:
        return

    def abandoned() -> bool | None:
        return None if _owner(names) else True

    if not poll(abandoned, every_s=0.2, for_s=patience_s) and (owner := _owner(names)):
        raise UserError(
            f"run {run} is on this cluster already: process {owner['DriverPid']} at {owner['DriverIPAddress']} "
            "drives it; stop that, or choose another run.name"
        )
    for name in names:
        clear(name)


def clear(name: str) -> None:
    """Kill the actor of that name, if there is one, also one that hangs; the name is free then.

    Raises:
        Unavailable: Ray does not let go of it.
    """

    def freed() -> bool | None:
        actor = _actor(name)
        if actor is None:
            return True
        with asked(f"end of actor {name}"):
            ray.kill(actor)
        return None

    if not poll(freed, every_s=0.1, for_s=GONE_S):
        raise Unavailable(f"actor {name} is still on Ray's books {GONE_S:g} s after it was killed")


def next_generation(run: str, role: Role, index: int) -> int:
    """A number above all that the cluster has given for this process of the run before, by whatever controller."""
    key = f"tandem:generation:{actor_name(run, role, index)}".encode()
    with asked(f"a generation of {role} {index}"):
        number = int(internal_kv._internal_kv_get(key) or 0) + 1
        internal_kv._internal_kv_put(key, str(number).encode())
    return number


def check_driver() -> None:
    """Where the node is lost that this driver reaches Ray by, Ray has given the driver up: it ends its actors and
    places nothing more for it, though the process lives on.

    Raises:
        TandemError: that is so: only another process can go on.
    """
    me = ray.get_runtime_context().get_job_id()
    with asked("this run's place on Ray's books"):
        jobs = state.jobs()
    if any(job["JobID"] == me and job["IsDead"] for job in jobs):
        raise TandemError(
            "Ray has given this controller up, since the node was lost by which it reached Ray; continue with --resume"
        )


def _actor(name: str) -> Any:
    try:
        with asked(f"actor {name}"):
            return ray.get_actor(name, namespace=NAMESPACE)
    except ValueError:  # no such actor
        return None


def _named(prefix: str) -> list[str]:
    with asked("the names of actors"):
        entries: list[Any] = ray.util.list_named_actors(all_namespaces=True)  # dicts, whatever its annotation says
    return [e["name"] for e in entries if e["namespace"] == NAMESPACE and e["name"].startswith(prefix)]


def _owner(names: set[str]) -> dict[str, Any] | None:
    """The driver, alive, of actors of these names that are."""
    with asked("who owns the actors"):
        actors, jobs = state.actors().values(), state.jobs()
    theirs = {actor["JobID"] for actor in actors if actor["Name"] in names and actor["State"] != "DEAD"}
    return next((job for job in jobs if job["JobID"] in theirs and not job["IsDead"]), None)
