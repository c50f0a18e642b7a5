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

from tandem.obs import get_logger
from tandem.runtime import until
from tandem.types import Death, Member, Role, TandemError, Unavailable, UserError
from tandem_controller.hosts import NEWS_S, Hosts
from tandem_controller.recoveries import Recoveries
from tandem_controller.replicas import Replicas
from tandem_controller.services import History, Services, bring

log = get_logger(__name__)
T = TypeVar("T")
ANSWER_S = 10.0  # within which a living service says how it is


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
        self._moving: set[str] = set()  # nodes that the learner is to leave

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

    async def keep(self, work: Callable[[], Awaitable[T]]) -> T:
        """See `Keeper`."""
        tries = 0
        while True:
            await self._mended()
            lives = self._lives()
            try:
                return await work()
            except Unavailable as problem:
                tries += 1
                await self._find(problem, lives, tries)

    async def boundary(self, save: Callable[[], Awaitable[None]]) -> None:
        """See `Keeper`."""
        ranks = self._deployment.ranks
        if self._wanted_ranks == self._ranks and not any(member.node in self._moving for member in ranks):
            return
        await save()
        before, self._ranks = self._ranks, self._wanted_ranks
        self._moving.clear()
        try:
            async with self._locks[Role.LEARNER]:
                await self._new_learner()
        except TandemError as problem:
            log.error("%d learner ranks cannot be had, it goes on with %d: %s", self._ranks, before, problem)
            self._ranks = self._wanted_ranks = before
            self._begin(Death(self._members[Role.LEARNER], f"it was ended for another number of ranks; {problem}"))
            await self._mended()
        log.info("the learner goes on with %d ranks from version %d", self._ranks, self.services.version)

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
        replicas = [member for member in self._deployment.rollouts if member.node == node]
        ranks = [member for member in self._deployment.ranks if member.node == node]
        if not replicas and not ranks:
            raise UserError(f"node {node}: nothing of this run is there")
        log.warning("node %s is to be left: %s", node, why)
        await self.hosts.call(self._deployment.avoid, node)
        for member in replicas:
            self.replicas.move(member)
        if ranks:
            self._moving.add(node)

    def members(self) -> tuple[Member, ...]:
        """Who takes part now."""
        return (*self._deployment.rollouts, *self._deployment.ranks, self._members[Role.CHECKPOINT_MANAGER])

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
        return (*words, *(f"the learner leaves node {node}" for node in sorted(self._moving)))

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
            await asyncio.wait(set(self._mending))
        if self._failed:
            raise self._failed

    def _lives(self) -> tuple[int, ...]:
        return tuple(member.identity.generation for member in self._members.values())

    async def _find(self, problem: Unavailable, lives: tuple[int, ...], tries: int) -> None:
        """Have mended what a call failed for. Raises `problem` where nothing is to be mended."""

        async def news() -> bool | None:
            return True if self._mending or self._failed or self._lives() != lives else None

        if await until(news, every_s=0.05, for_s=NEWS_S):
            return
        for role in (Role.CHECKPOINT_MANAGER, Role.LEARNER):
            if not await self._answers(role):
                self._begin(Death(self._members[role], f"it does not answer; {problem}"))
                return
        if tries == 1:  # both are there: the network may have failed for a moment
            log.warning("tried again: %s", problem)
            return
        self._begin(Death(self._members[Role.LEARNER], f"it answers, but cannot go on: {problem}"))

    async def _answers(self, role: Role) -> bool:
        client = self.services.learner if role is Role.LEARNER else self.services.checkpoints
        with suppress(Unavailable):
            await client.status(timeout_s=ANSWER_S)
            return True
        return False

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
                    except Unavailable as problem:
                        log.warning("%s: another start, since %s", role, problem)
                        if role is Role.LEARNER and not await self._answers(Role.CHECKPOINT_MANAGER):
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
            if not slept:
                await fleet.sleep()
            try:
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
