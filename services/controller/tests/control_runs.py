"""A run to look at and to change, for tests of the controller's port: what it was asked for is in `asked`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tandem.types import (
    Death,
    Identity,
    Member,
    MemberStatus,
    Problem,
    Recovery,
    Role,
    RunStatus,
    StepFigures,
    UserError,
)

LEARNER = Member(Identity(Role.LEARNER, 0, 2), "10.0.0.1:4711", "node-1")
ROLLOUT = Member(Identity(Role.ROLLOUT, 1, 3), "10.0.0.2:4712", "node-2")
RANK = Member(Identity(Role.LEARNER, 1, 2), "", "node-2")
MANAGER = Member(Identity(Role.CHECKPOINT_MANAGER, 0, 1), "10.0.0.9:4713", "head")
DEATH = Death(replace(ROLLOUT, identity=Identity(Role.ROLLOUT, 1, 2)), "killed by SIGKILL", ("[INFO] one", "two"))

STATUS = RunStatus(
    name="maze",
    run_id="0123abcd",
    started=1_000_000.0,
    version=12,
    steps=80,
    phase="generate",
    phase_s=31.5,
    quiet_s=12.0,
    members=(
        MemberStatus(LEARNER, "training", 12, 1_000_100.0),
        MemberStatus(ROLLOUT, "serving", 12, 1_000_200.0),
        MemberStatus(RANK, "training", None, 1_000_100.0),
        MemberStatus(MANAGER, "serving", None, 1_000_000.0),
    ),
    waits=("controller waits for rollout 1 (generation 3): Rollout v12, for 31 s",),
    pending=("3 rollout replicas",),
    recoveries=(
        Recovery(DEATH, 1_000_150.0, "a new one is started on node-3", 12.25),
        Recovery(DEATH, 1_000_180.0, "", None),
    ),
    groups=5,
    groups_wanted=8,
    recent=(
        StepFigures(11, (("generate", 4.0), ("train", 1.0)), 64, 400, 0.25, 0.5, 0.75, None),
        StepFigures(12, (("generate", 3.0), ("train", 1.5), ("eval", 0.5)), 64, 400, 0.5, None, -0.5, 0.375),
    ),
    problems=(Problem(1_000_150.5, "rollout 1 (generation 2) died: killed by SIGKILL"),),
)
# As it may look on a screen: nobody waits for anybody, and more steps lie behind it.
STEPPED = replace(
    STATUS,
    quiet_s=0.5,
    waits=(),
    recent=tuple(
        StepFigures(
            version, (("generate", 8.0), ("train", 1.5), ("sync", 0.5)), 64, 500, version / 12, version / 10, 0.1, None
        )
        for version in range(1, 13)
    ),
)


@dataclass
class Run:
    """As the supervisor does, it refuses what cannot be."""

    told: RunStatus = STATUS
    asked: list[tuple] = field(default_factory=list)

    def status(self) -> RunStatus:
        return self.told

    async def scale(self, *, rollout: int | None = None, learner: int | None = None) -> None:
        if learner and learner > 8:
            raise UserError(f"learner={learner}: the Ray cluster has room for 8")
        self.asked.append(("scale", rollout, learner))

    async def drain(self, node: str, why: str) -> None:
        self.asked.append(("drain", node, why))
