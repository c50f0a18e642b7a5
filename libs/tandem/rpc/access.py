"""Who may call what, and how large one message of a request may be: the whole table. What is not in it is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tandem.types import Role

KIB, MIB = 2**10, 2**20
REST = 64 * MIB  # of anything but groups
LARGEST = 256 * MIB  # a group of 8 trajectories of 20 turns with its images is far smaller


@dataclass(frozen=True, slots=True)
class Rule:
    """Of one method."""

    callers: frozenset[Role]
    request_bytes: int


def _rule(callers: str, request_bytes: int) -> Rule:
    return Rule(frozenset(Role(name) for name in callers.split()), request_bytes)


BY_SERVICE: Mapping[str, Mapping[str, Rule]] = {
    "tandem.rollout.v1.RolloutService": {
        "Rollout": _rule("controller", 4 * MIB),
        "PutShard": _rule("learner", 2 * MIB),
        "LoadAdapter": _rule("controller", 4 * MIB),
        "Sleep": _rule("controller", 4 * KIB),
        "Wake": _rule("controller", 4 * KIB),
        "GetStatus": _rule("controller operator", 4 * KIB),
    },
    "tandem.learner.v1.LearnerService": {
        "TrainStep": _rule("controller", LARGEST),
        "Snapshot": _rule("controller", 4 * KIB),
        "Export": _rule("controller", 256 * KIB),
        "Restore": _rule("controller", 64 * KIB),
        "GetStatus": _rule("controller operator", 4 * KIB),
    },
    "tandem.checkpoint.v1.CheckpointService": {
        "PutShard": _rule("learner", 2 * MIB),
        "Publish": _rule("controller", REST),  # a state's metadata holds the metrics of all steps so far
        "GetAdapter": _rule("controller operator", 4 * KIB),
        "ListAdapters": _rule("controller operator", 4 * KIB),
        "DeleteAdapter": _rule("controller", 4 * KIB),
        "ScoreAdapter": _rule("controller", 256 * KIB),
        "GetStatus": _rule("controller operator", 4 * KIB),
    },
    "tandem.controller.v1.ControllerService": {
        "GetStatus": _rule("operator controller", 4 * KIB),
        "Scale": _rule("operator controller", 4 * KIB),
        "Drain": _rule("operator controller", 64 * KIB),
    },
    "grpc.reflection.v1alpha.ServerReflection": {"ServerReflectionInfo": _rule("operator controller", 64 * KIB)},
    "grpc.health.v1.Health": {
        "List": _rule("operator controller", 4 * KIB),
        "Watch": _rule("operator controller", 4 * KIB),
    },
}
FOR_ANYONE = "/grpc.health.v1.Health/Check"  # a prober has no token; all it learns is SERVING or NOT_SERVING


def rule_of(method: str) -> Rule | None:
    """The rule of a method as gRPC names it, `/package.Service/Method`; None where there is none."""
    _, service, name = method.split("/") if method.count("/") == 2 else ("", "", "")
    return BY_SERVICE.get(service, {}).get(name)


def largest_request(services: frozenset[str]) -> int:
    """Bytes of the largest message that any method of these services takes."""
    rules = [rule for service in services for rule in BY_SERVICE.get(service, {}).values()]
    return max((rule.request_bytes for rule in rules), default=4 * MIB)
