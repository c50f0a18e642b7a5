"""Room for services: a placement group for each slot, which the replica and the rank of one index share in halves.

Slots come and go. Ray itself places a slot anew whose node is lost; one for which there is no room stays asked for, so
that an autoscaler knows of it.

A slot whose node is to be left gets a second group elsewhere, to which its halves move one by one, each when it is
started anew: Ray kills what lives in a group that is removed, so a group goes when nobody holds it any more.
"""

from __future__ import annotations

import time
from threading import Lock
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from tandem.cluster.books import asked
from tandem.cluster.nodes import Nodes
from tandem.cluster.session import HEAD_MEM
from tandem.config import ClusterConfig
from tandem.obs import get_logger
from tandem.types import Role, Unavailable

log = get_logger(__name__)
NODE_ID = "ray.io/node-id"  # the label that Ray gives each node
Half = tuple[Role, int]


class Slots:
    """The slots of one run."""

    def __init__(self, config: ClusterConfig, nodes: Nodes) -> None:
        self._config, self._nodes = config, nodes
        self._groups: dict[int, PlacementGroup] = {}  # where a half that is started now goes
        self._held: dict[Half, list[PlacementGroup]] = {}  # where a half lives, or is to live
        self._left: list[PlacementGroup] = []  # that nobody holds, and Ray could not remove yet
        self._lock = Lock()

    @property
    def bundle(self) -> dict[str, float]:
        """What one slot takes."""
        return {"CPU": self._config.cpus_per_worker, **({"GPU": 1} if self._config.gpus else {})}

    def ask(self, role: Role, index: int) -> PlacementGroup:
        """Have Ray look for room for a half of a slot, elsewhere where its node is avoided.

        Raises:
            Unavailable: Ray's head is away.
        """
        with self._lock, asked(f"room for slot {index}"):
            group = self._groups.get(index)
            if group is None or self._node(group) in self._nodes.avoided:
                group = self._groups[index] = placement_group([self.bundle], bundle_label_selector=[self.selector()])
            held = self._held.setdefault((role, index), [])
            if group not in held:
                held.append(group)
            return group

    def find(self, role: Role, index: int, until: float) -> PlacementGroup:
        """Wait until there is room for a half of a slot (by `time.monotonic()`); where it lives now, it lives on.

        Raises:
            Unavailable: there is none in time, or Ray's head is away. The slot stays asked for.
        """
        group = self.ask(role, index)
        if not group.wait(max(0.0, until - time.monotonic())):
            raise Unavailable(f"no room for slot {index}: {self.missing()}")
        return group

    def take(self, role: Role, index: int, until: float) -> dict[str, Any]:
        """The options of an actor that takes its half of a slot; where it lived before, nothing of it may live.

        Raises:
            Unavailable: as `find`.
        """
        group = self.find(role, index, until)
        self._hold(role, index, [group])
        return {
            "num_cpus": self._config.cpus_per_worker / 2,
            "num_gpus": 0.5 if self._config.gpus else 0,
            "scheduling_strategy": PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=0),
        }

    def held(self, role: Role) -> frozenset[int]:
        """The slots of which a role has its half, or has asked for it."""
        with self._lock:
            return frozenset(index for known, index in self._held if known is role)

    def head(self) -> dict[str, Any]:
        """The options of an actor on the high-memory head."""
        return {"num_cpus": 0, "resources": {HEAD_MEM: 0.1}, "label_selector": self.selector() or None}

    def missing(self) -> str:
        """What a slot takes, what is free, and which nodes are avoided, for a person."""
        with asked("what is free"):
            have = ray.available_resources()
        free = {name: round(have.get(name, 0.0), 2) for name in self.bundle}
        avoided = self._nodes.avoided
        without = f", with {len(avoided)} nodes avoided" if avoided else ""
        return f"it takes {_words(self.bundle)}; the Ray cluster has {_words(free)} free on all its nodes{without}"

    def selector(self) -> dict[str, str]:
        """By labels: any node but those avoided."""
        avoided = sorted(self._nodes.avoided)
        return {NODE_ID: f"!in({','.join(avoided)})"} if avoided else {}

    def free(self, role: Role, index: int) -> None:
        """Give a half of a slot back, and the slot where nobody has the other half."""
        self._hold(role, index, [])

    def close(self) -> None:
        """Give all back."""
        for role, index in list(self._held):
            self.free(role, index)

    def _hold(self, role: Role, index: int, groups: list[PlacementGroup]) -> None:
        """A half is in these groups and in no others: those that nobody is in go."""
        with self._lock:
            before = self._held.pop((role, index), [])
            if groups:
                self._held[role, index] = groups
            held = [group for groups in self._held.values() for group in groups]
            left = [group for group in before if group not in held]
            if self._groups.get(index) in left:
                del self._groups[index]
            left, self._left = self._left + left, []
        for group in left:
            try:
                with asked("room to be given back"):
                    remove_placement_group(group)
            except Unavailable as problem:
                log.warning("tried again later: %s", problem)
                with self._lock:
                    self._left.append(group)

    @staticmethod
    def _node(group: PlacementGroup) -> str:
        """Ray's id of the node a group is on; empty for one that is on none."""
        return placement_group_table(group).get("bundles_to_node_id", {}).get(0, "")


def _words(resources: dict[str, float]) -> str:
    return " and ".join(f"{amount:g} {name}" for name, amount in resources.items())
