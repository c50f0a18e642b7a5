"""Keeps the services of a run alive while the loop uses them.

    Ray tells of a death, or a call fails -> learner:  all ranks anew -> the last saved state -> learns again from the
                                                       journal, up to where it was
                                             manager:  anew on the same store, which it sweeps
                                             replica:  see `replicas`
    and the call that failed is made again.

A caller's work goes through `keep`: it waits while something is being mended, and is done again where something was.
What was asked for in the meantime, such as another number of ranks, happens at a step's `boundary`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

from tandem.obs import get_logger, span
from tandem.runtime import pause, until
from tandem.types import Death, Member, NotFound, Role, TandemError, Unavailable, UserError
from tandem_controller.hosts import NEWS_S, Hosts
from tandem_controller.recoveries import Recoveries
from tandem_controller.replicas import Replicas
from tandem_controller.services import History, Services, bring

log = get_logger(__name__)
T = TypeVar("T")
ANSWER_S = 10.0  # within which a living process answers
TRIES = 10  # of a call that fails though all are there, `NEWS_S` apart
PAUSE_S = 5.0  # between two starts of one service


class Supervisor:
    """See the module. `history` is what the learner learned from, for one that has to learn it again."""

    def __init__(
        self, hosts: Hosts, services: Services, replicas: Replicas, recoveries: Recoveries, history: History
    ) -> None:
        self.replicas, self.recoveries = replicas, recoveries
        self.hosts, self.services = hosts, services
        self._deployment, self._config, self._history = hosts.deployment, hosts.config, history
        self._members = {Role.LEARNER: self._deployment.learner, Role.CHECKPOINT_MANAGER: self._deployment.checkpoint}
        self._locks = {role: asyncio.Lock() for role in self._members}
        self._mending: set[asyncio.Task[None]] = set()
        self._failed: TandemError | None = None  # what could not be mended
        self._spent: Counter[tuple[Role, int]] = Counter()  # restarts, by role and the version they were needed at
        self._ranks = len(self._deployment.ranks)
        self._wanted_ranks = self._ranks
        self._to_leave: frozenset[str] = frozenset()  # nodes, at the next boundary

    def died(self, death: Death) -> None:
        """A service is no more: another takes its place."""
        if death.member.identity.role is Role.ROLLOUT:
            self.replicas.died(death)
        else:
            self._begin(death)

    async def close(self) -> None:
        """Mend nothing more."""
        for task in self._mending:
            task.cancel()
        await asyncio.gather(*self._mending, return_exceptions=True)

    async def keep(self, work: Callable[[], Awaitable[T]], *, blames: Role | None = None) -> T:
        """See `Keeper`."""
        tries = 0
        while True:
            await self._mended()
            lives = self._lives()
            try:
                with span("try again", {"tandem.attempt": tries + 1}, on=tries > 0):
                    return await work()
            except Unavailable as problem:
                tries += 1
                await self._find(problem, lives, blames, tries)

    async def boundary(self, save: Callable[[], Awaitable[None]]) -> None:
        """See `Keeper`."""
        wanted, left = self._wanted_ranks, self._to_leave
        if wanted == self._ranks and not left:
            return
        await save()
        self._to_leave = frozenset()
        if wanted == self._ranks and not any(member.node in left for member in self._deployment.ranks):
            return
        before, self._ranks = self._ranks, wanted
        try:
            async with self._locks[Role.LEARNER]:
                await self._new_learner()
        except TandemError as problem:
            log.error("%d learner ranks cannot be had, it goes on with %d: %s", wanted, before, problem)
            self._ranks = before
            self._wanted_ranks = before if self._wanted_ranks == wanted else self._wanted_ranks
            if not self._learner_lives():  # there was room, but they do not start
                self._begin(Death(self._members[Role.LEARNER], f"it was ended for another number of ranks; {problem}"))
                await self._mended()
        log.info("the learner goes on with %d ranks from version %d", self._ranks, self.services.version)

    def _learner_lives(self) -> bool:
        with suppress(Unavailable):
            return self._deployment.learner.identity == self._members[Role.LEARNER].identity
        return False

    async def scale(self, *, rollout: int | None = None, learner: int | None = None) -> None:
        """See `Controls`."""
        if learner is not None and learner < 1:
            raise UserError(f"learner={learner}: a run needs one rank at least")
        if rollout is not None:
            self.replicas.scale(rollout)
        if learner is not None:
            self._wanted_ranks = learner

    async def drain(self, node: str, why: str) -> None:
        """See `Controls`."""
        here = [member for member in self.members() if member.node == node]
        if not here:
            raise UserError(f"node {node}: nothing of this run is there")
        log.warning("node %s is to be left: %s", node, why)
        await self.hosts.call(self._deployment.avoid, node)
        self._to_leave |= {node}
        for member in here:
            if member.identity.role is Role.ROLLOUT:
                self.replicas.move(member)
            if member.identity.role is Role.CHECKPOINT_MANAGER:
                log.warning("%s stays on node %s: no other has head_mem", member, node)

    def members(self) -> tuple[Member, ...]:
        """Who takes part now."""
        return (*self._deployment.rollouts, *self._deployment.ranks, self._members[Role.CHECKPOINT_MANAGER])

    def wanted(self, role: Role) -> int:
        """How many of a role there should be."""
        counts = {Role.ROLLOUT: self.replicas.wanted, Role.LEARNER: self._wanted_ranks}
        return counts.get(role, 1)

    def state(self, member: Member) -> str:
        """What it does, in a word."""
        role = member.identity.role
        if role is Role.ROLLOUT:
            return self.replicas.state(member)
        return "recovering" if self._locks[role].locked() else "serving"

    def pending(self) -> tuple[str, ...]:
        """What happens at the next boundary, in words."""
        words = []
        if self._wanted_ranks != self._ranks:
            words.append(f"the learner goes from {self._ranks} to {self._wanted_ranks} ranks")
        return (*words, *(f"node {node} is left" for node in sorted(self._to_leave)))

    def _begin(self, death: Death) -> None:
        task = asyncio.create_task(self._mend(death))
        self._mending.add(task)
        task.add_done_callback(self._over)

    def _over(self, task: asyncio.Task[None]) -> None:
        self._mending.discard(task)
        if not task.cancelled() and (problem := task.exception()):
            told = problem if isinstance(problem, TandemError) else TandemError(f"{type(problem).__name__}: {problem}")
            log.error("%s", told, exc_info=None if told is problem else problem)
            self._failed = told

    async def _mended(self) -> None:
        """Wait for what is being mended. Raises what could not be."""
        while self._mending:
            with span("wait for recovery"):
                await asyncio.wait(set(self._mending))
        if self._failed:
            raise self._failed

    def _lives(self) -> tuple[int, ...]:
        return tuple(member.identity.generation for member in self._members.values())

    async def _find(self, problem: Unavailable, lives: tuple[int, ...], blames: Role | None, tries: int) -> None:
        """Have mended what a call failed for, or wait a while. Raises `problem` where neither helps."""

        async def news() -> bool | None:
            return True if self._mending or self._failed or self._lives() != lives else None

        if await until(news, every_s=0.05, for_s=NEWS_S):
            return
        for role, client in (
            (Role.CHECKPOINT_MANAGER, self.services.checkpoints),
            (Role.LEARNER, self.services.learner),
        ):
            if not await client.peer.alive(ANSWER_S):
                self._begin(Death(self._members[role], f"it does not answer; {problem}"))
                return
        if blames and tries > 1:
            self._begin(Death(self._members[blames], f"it answers, but cannot go on: {problem}"))
        elif tries < TRIES:  # the network, or the store, may have failed for a moment
            log.warning("tried again: %s", problem)
        else:
            raise problem

    async def _mend(self, death: Death) -> None:
        """Put another in a dead one's place. Raises TandemError where that has been done too often at one version."""
        role, dead = death.member.identity.role, death.member.identity
        async with self._locks[role]:
            if self._members[role].identity.generation != dead.generation:
                return  # it has been
            with self.recoveries.of(death) as recovery:
                while True:
                    self._spend(role, death)
                    try:
                        recovery.done(await (self._new_learner() if role is Role.LEARNER else self._new_manager()))
                        return
                    except (Unavailable, NotFound) as problem:  # a state may have gone for a newer one meanwhile
                        log.warning("%s: another start, since %s", role, problem)
                        await pause(PAUSE_S)
                        if role is Role.LEARNER and not await self.services.checkpoints.peer.alive(ANSWER_S):
                            manager = self._members[Role.CHECKPOINT_MANAGER]
                            await self._mend(Death(manager, f"it does not answer; {problem}"))

    def _spend(self, role: Role, death: Death) -> None:
        version = self.services.version
        self._spent[role, version] += 1
        if self._spent[role, version] > self._config.faults.restarts:
            raise TandemError(
                f"{role}: restarted {self._config.faults.restarts} times at version {version} and still not well, "
                f"at last: {death.why}; see its log, then continue with --resume"
            )

    async def _new_learner(self) -> str:
        member = await self.hosts.call(self._deployment.start_learner, self._ranks)
        self._members[Role.LEARNER] = member
        old, self.services.learner = self.services.learner, self.hosts.learner(member)
        await old.close()
        async with self._alone():
            since = await bring(self.services, self._config, self._history, self.services.version)
        return (
            f"all {self._ranks} ranks were started anew as generation {member.identity.generation} and have learned "
            f"versions {since.version} to {self.services.version} again from the journal"
        )

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        """Engines that share its GPUs sleep meanwhile, unless they play while it trains anyway."""
        if not self._config.cluster.gpus or self._config.rollout.max_staleness:
            yield
            return
        fleet = self.services.fleet
        async with fleet.quiet.resting():
            slept = fleet.asleep
            try:
                if not slept:
                    await fleet.sleep()
                yield
            finally:
                if not slept:
                    await fleet.wake()

    async def _new_manager(self) -> str:
        member = await self.hosts.call(self._deployment.start_checkpoint, self.services.version)
        self._members[Role.CHECKPOINT_MANAGER] = member
        old, self.services.checkpoints = self.services.checkpoints, self.hosts.checkpoints(member)
        await old.close()
        return f"started {member} on the same store"
