"""The nodes of a Ray cluster by their stable names, and those on which nothing new shall be placed."""

from __future__ import annotations

import time
from threading import Lock

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tandem.cluster.books import asked
from tandem.cluster.host import node_name
from tandem.obs import get_logger
from tandem.types import NotFound

log = get_logger(__name__)
ASK_S = 30.0


class Nodes:
    """What nodes there are. A node that leaves and comes back is another one, and no longer avoided."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}  # by Ray's id
        self._avoided: set[str] = set()
        self._lock = Lock()

    @property
    def avoided(self) -> frozenset[str]:
        """Ray's ids."""
        with self._lock:
            return frozenset(self._avoided)

    def known(self, ray_id: str, name: str) -> None:
        """A node told its name."""
        with self._lock:
            self._names[ray_id] = name

    def names(self) -> dict[str, str]:
        """Names of the nodes that are alive, by Ray's ids. Each is asked once; one that does not answer is left out.

        Raises:
            Unavailable: Ray's head is away.
        """
        with asked("the nodes"):
            alive = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
        answers = {
            ray_id: _ask.options(scheduling_strategy=NodeAffinitySchedulingStrategy(ray_id, soft=False)).remote()
            for ray_id in alive
            if ray_id not in self._names
        }
        until = time.monotonic() + ASK_S
        for ray_id, answer in answers.items():
            try:
                self.known(ray_id, ray.get(answer, timeout=max(0.1, until - time.monotonic())))
            except RayError as problem:  # it left, or is too slow: next time
                log.warning("node %s does not tell its name: %s", ray_id, " ".join(str(problem).split()))
        return {ray_id: self._names[ray_id] for ray_id in alive if ray_id in self._names}

    def avoid(self, name: str) -> None:
        """Place nothing new on the node of that name.

        Raises:
            NotFound: there is none.
        """
        found = {ray_id for ray_id, known in self.names().items() if known == name}
        if not found:
            raise NotFound(
                f"this Ray cluster has no node named {name}; it has {', '.join(sorted(self.names().values()))}"
            )
        with self._lock:
            self._avoided |= found


@ray.remote(num_cpus=0)
def _ask() -> str:
    return node_name()
