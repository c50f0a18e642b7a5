"""Room for services: a placement group for each slot, which the replica and the rank of one index share in halves.

Slots come and go. Ray itself places a slot anew whose node is lost; one for which there is no room stays asked for, so
that an autoscaler knows of it.
"""

from __future__ import annotations

import time
from threading import Lock
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from tandem.cluster.nodes import Nodes
from tandem.cluster.session import HEAD_MEM
from tandem.config import ClusterConfig
from tandem.types import Unavailable

NODE_ID = "ray.io/node-id"  # the label that Ray gives each node


class Slots:
    """The slots of one run."""

    def __init__(self, config: ClusterConfig, nodes: Nodes) -> None:
        self._config, self._nodes = config, nodes
        self._groups: dict[int, PlacementGroup] = {}
        self._lock = Lock()

    @property
    def bundle(self) -> dict[str, float]:
        """What one slot takes."""
        return {"CPU": self._config.cpus_per_worker, **({"GPU": 1} if self._config.gpus else {})}

    def ask(self, index: int) -> PlacementGroup:
        """Have Ray look for room for a slot, anew where its node is avoided."""
        with self._lock:
            group = self._groups.get(index)
            if group is not None and self._node(group) in self._nodes.avoided:
                remove_placement_group(group)
                group = None
            if group is None:
                group = self._groups[index] = placement_group([self.bundle], bundle_label_selector=[self.selector()])
            return group

    def place(self, index: int, until: float) -> dict[str, Any]:
        """The options of an actor that takes its half of a slot, once there is room (by `time.monotonic()`).

        Raises:
            Unavailable: there is none in time. The slot stays asked for.
        """
        group = self.ask(index)
        if not group.wait(max(0.0, until - time.monotonic())):
            raise Unavailable(f"no room for slot {index}: {self.missing()}")
        return {
            "num_cpus": self._config.cpus_per_worker / 2,
            "num_gpus": 0.5 if self._config.gpus else 0,
            "scheduling_strategy": PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=0),
        }

    def head(self) -> dict[str, Any]:
        """The options of an actor on the high-memory head."""
        return {"num_cpus": 0, "resources": {HEAD_MEM: 0.1}, "label_selector": self.selector() or None}

    def missing(self) -> str:
        """What a slot takes, what is free, and which nodes are avoided, for a person."""
        free = {name: round(ray.available_resources().get(name, 0.0), 2) for name in self.bundle}
        avoided = self._nodes.avoided
        without = f", with {len(avoided)} nodes avoided" if avoided else ""
        return f"it takes {_words(self.bundle)}; the Ray cluster has {_words(free)} free on all its nodes{without}"

    def selector(self) -> dict[str, str]:
        """By labels: any node but those avoided."""
        avoided = sorted(self._nodes.avoided)
        return {NODE_ID: f"!in({','.join(avoided)})"} if avoided else {}

    def free(self, index: int) -> None:
        """Give a slot back."""
        with self._lock:
            group = self._groups.pop(index, None)
        if group is not None:
            remove_placement_group(group)

    def close(self) -> None:
        """Give all back."""
        for index in list(self._groups):
            self.free(index)

    @staticmethod
    def _node(group: PlacementGroup) -> str:
        """Ray's id of the node a group is on; empty for one that is on none."""
        return placement_group_table(group).get("bundles_to_node_id", {}).get(0, "")


def _words(resources: dict[str, float]) -> str:
    return " and ".join(f"{amount:g} {name}" for name, amount in resources.items())
