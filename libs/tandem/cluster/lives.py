"""The actors of a run and the services in them: made, ended, and told of when they die."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Lock
from typing import Any

import ray
from ray.exceptions import RayError

from tandem.cluster.books import asked
from tandem.cluster.causes import cause
from tandem.cluster.ends import End, tail
from tandem.cluster.host import STOP_S, ServiceHost, result
from tandem.cluster.registry import NAMESPACE, actor_name, check_driver, clear
from tandem.config import Config
from tandem.obs import get_logger, span
from tandem.obs.tracing import inject
from tandem.rpc.hosted import Order
from tandem.rpc.keyring import Keyring
from tandem.types import Death, Identity, Member, Role, Unavailable

log = get_logger(__name__)
KILL_S = 5.0  # for an actor to end its service; one that hangs is killed itself
CHECK_S = 10.0  # between two looks, while a service starts, at whether Ray still knows this driver
Key = tuple[Role, int]


@dataclass(frozen=True, slots=True)
class Life:
    """An actor; the member that its service is, and the log of that, once it is up."""

    me: Identity
    actor: Any
    member: Member | None = None
    log: Path = Path()
    end: Any = None  # the reference of what `ended` will answer


class Lives:
    """By role and index, who lives. For several threads; of one role and index, one thread at a time."""

    def __init__(self, config: Config, run: str, host: str, logs: str, keyring: Keyring) -> None:
        self._config, self._run, self._host, self._logs, self._keyring = config, run, host, logs, keyring
        self._by_key: dict[Key, Life] = {}
        self._ends: SimpleQueue[Life] = SimpleQueue()
        self._lock = Lock()
        self._closed = False

    def members(self, role: Role) -> tuple[Member, ...]:
        """Those that are up, by index."""
        with self._lock:
            found = [life.member for key, life in sorted(self._by_key.items()) if key[0] is role]
        return tuple(member for member in found if member is not None)

    def member(self, role: Role) -> Member:
        """The one with index 0. Raises Unavailable where it is not up."""
        found = self.members(role)
        if not found or found[0].identity.index:
            raise Unavailable(f"the {role.replace('_', ' ')} does not run now")
        return found[0]

    def indices(self, role: Role) -> tuple[int, ...]:
        """Those for which there is an actor, whether its service is up or not."""
        with self._lock:
            return tuple(index for known, index in sorted(self._by_key) if known is role)

    def open(self, me: Identity, placement: dict[str, Any]) -> None:
        """Make the actor of a service to be started.

        Raises:
            Unavailable: Ray does not let go of the actor that had its name, its head is away, or all is being stopped.
        """
        name = actor_name(self._run, me.role, me.index)
        clear(name)
        door = self._keyring.door(me)
        order = Order(f"tandem_{me.role}.main", self._config.model_dump_json(), self._host, door, trace=inject())
        options = {"name": name, "namespace": NAMESPACE, **placement}
        with asked(f"an actor for {me}"):  # waits for Ray's store: not under the lock
            actor = ServiceHost.options(**options).remote(order, self._logs)
        life = Life(me, actor)
        with self._lock:
            closed = self._closed
            if not closed:
                self._by_key[me.role, me.index] = life
        if closed:
            _kill(life)
            raise Unavailable(f"{me} is not started: the run ends")

    def free_address(self, me: Identity, until: float) -> str:
        """host:port that is free where a service will be."""
        return result(self._life(me).actor.free_address.remote(), until, str(me))

    def start(self, me: Identity, until: float, **arguments: Any) -> Member:
        """Start the service in its actor; from then on its death will be told.

        Raises:
            Unavailable: it was not up in time, or its process, actor or node was lost.
            TandemError: what its start raised, or Ray has given this driver up.
        """
        life = self._life(me)
        with span(f"start {me.role}", {"tandem.member": str(me)}):
            starting = life.actor.start.remote(**arguments)
            while time.monotonic() < until and not ray.wait([starting], timeout=CHECK_S)[0]:
                check_driver()
            started = result(starting, until, f"start of {me}")
        member = Member(me, started.address, started.node, started.metrics)
        up = Life(me, life.actor, member, Path(started.log), life.actor.ended.remote())
        with self._lock:
            if self._by_key.get((me.role, me.index)) is not life:
                raise Unavailable(f"{me} was ended while it started")
            self._by_key[me.role, me.index] = up
        up.end.future().add_done_callback(lambda _: self._ends.put(up))
        log.info("%s is up on node %s", member, member.node)
        return member

    def end(self, role: Role, index: int, in_order: bool = False) -> None:
        """End who lives there, if any, also one that hangs. Its death will not be told."""
        with self._lock:
            life = self._by_key.pop((role, index), None)
        if life is not None:
            _stop(life, STOP_S if in_order else 0.0)

    def wait_death(self, timeout_s: float) -> Death | None:
        """See Deployment."""
        until = time.monotonic() + timeout_s
        while True:
            try:
                life = self._ends.get(timeout=max(0.0, until - time.monotonic()))
            except Empty:
                return None
            with self._lock:
                current = self._by_key.get((life.me.role, life.me.index)) is life
                if current:
                    del self._by_key[life.me.role, life.me.index]
            if current and life.member is not None:
                end = _end(life)
                _kill(life)
                return Death(life.member, end.why, end.last_lines)

    def close(self) -> None:
        """Stop all in order, side by side; nothing is started from now on."""
        with self._lock:
            self._closed = True
            lives = list(self._by_key.values())
            self._by_key.clear()
        if lives:
            asked = [life.actor.stop.remote() for life in lives]
            ray.wait(asked, num_returns=len(asked), timeout=STOP_S + KILL_S)
        for life in lives:
            _kill(life)

    def _life(self, me: Identity) -> Life:
        with self._lock:
            life = self._by_key.get((me.role, me.index))
        if life is None or life.me != me:
            raise Unavailable(f"{me} was ended while it started")
        return life


def _stop(life: Life, patience_s: float) -> None:
    """End the service and then the actor. One that does not answer, being dead or hung, is killed."""
    ray.wait([life.actor.stop.remote(patience_s)], timeout=patience_s + KILL_S)
    _kill(life)


def _kill(life: Life) -> None:
    """Kill an actor. Where Ray's store is away, it goes when its name is needed again, or with this driver."""
    with suppress(RayError):
        ray.kill(life.actor)


def _end(life: Life) -> End:
    try:
        return ray.get(life.end, timeout=KILL_S)
    except RayError as problem:  # the actor itself is gone, and its process's exit status with it
        return End(cause(problem, life.member), tail(life.log))
