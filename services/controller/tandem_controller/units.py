"""What is dealt to whom: plays, their units, and the calls that replicas are busy with."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import TypeVar

from tandem.rpc.clients import RolloutClient
from tandem.runtime import together
from tandem.types import Identity, Member, RolloutTask, StopReason, TandemError, Trajectory, TrajectoryGroup

T = TypeVar("T")


class Play:
    """What has come of one task: `done` once every group is there, or never will be."""

    def __init__(self, task: RolloutTask, on_group: Callable[[TrajectoryGroup], None]) -> None:
        self.task = task
        self.groups: list[TrajectoryGroup] = []
        self.missing = set(task.seeds)
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.context = copy_context()  # what its calls are a part of, whenever and for whatever reason they begin
        self._on_group = on_group

    def arrived(self, group: TrajectoryGroup) -> None:
        """Take a group, the first of its seed: a unit that is played anew brings some once more."""
        if group.seed not in self.missing or self.done.done():
            return
        self.missing.remove(group.seed)
        self.groups.append(group)
        self._on_group(group)
        if not self.missing:
            self.done.set_result(None)

    def fail(self, problem: BaseException) -> None:
        """There is no playing on."""
        if not self.done.done():
            self.done.set_exception(problem)


@dataclass(eq=False, slots=True)
class Unit:
    """Groups of a play that are played by one replica, together. `failed` are those that did not bring it to an end."""

    play: Play
    task: RolloutTask
    failed: list[Identity] = field(default_factory=list)
    calls: set[Call] = field(default_factory=set)
    queued: bool = False

    @property
    def episodes(self) -> int:
        """How many seats it takes."""
        return len(self.task.seeds) * self.task.group_size

    @property
    def ended(self) -> bool:
        """Whether all its groups are there."""
        return self.play.missing.isdisjoint(self.task.seeds)


@dataclass(eq=False, slots=True)
class Replica:
    """A member that units are given to."""

    member: Member
    client: RolloutClient
    draining: bool = False
    calls: set[Call] = field(default_factory=set)
    episodes: int = 0  # of its calls
    idle: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(eq=False, slots=True)
class Call:
    """One unit at one replica."""

    unit: Unit
    replica: Replica
    running: asyncio.Task[None] | None = None
    late: asyncio.TimerHandle | None = None
    whole: bool = False  # all its groups are there: it is about to end


def given_up(task: RolloutTask, why: str) -> TrajectoryGroup:
    """The group of a task of one seed that nobody could play: failed episodes, from which nothing is learned."""
    (seed,) = task.seeds
    failed = (Trajectory(m, (), StopReason.ENV_ERROR, 0.0, error=why) for m in range(task.group_size))
    name = f"v{task.policy_version}-s{task.sampling_seed}-t{seed}"
    return TrajectoryGroup(name, task.env, seed, task.policy_version, tuple(failed), {})


async def ask_all(replicas: Sequence[Replica], ask: Callable[[Replica], Awaitable[T]]) -> dict[Member, T | TandemError]:
    """What each replica answers, or why it does not."""

    async def one(replica: Replica) -> T | TandemError:
        try:
            return await ask(replica)
        except TandemError as problem:
            return problem

    asked = list(replicas)
    answers = await together(*map(one, asked))
    return {replica.member: answer for replica, answer in zip(asked, answers, strict=True)}
