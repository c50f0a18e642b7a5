"""The rollout replicas of a run: who dies is replaced, more are started and some let go while the run goes on.

    death, or a replica that does not answer -> no more traffic, its groups elsewhere (fleet) -> the next generation
    -> it loads and proves what the others serve (fleet.admit) -> traffic

All of it happens beside the loop, which goes on with the replicas there are.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Coroutine
from typing import Any

from tandem.obs import get_logger
from tandem.runtime import retry, together
from tandem.types import Death, Member, TandemError, Unavailable, UserError
from tandem_controller.fleet import Fleet
from tandem_controller.hosts import Hosts
from tandem_controller.recoveries import Recoveries

log = get_logger(__name__)
PAUSE_S, LONGEST_PAUSE_S = 2.0, 120.0  # between two starts of a replica, at first and later


class Replicas:
    """See the module. Without `faults.restarts` nobody is replaced."""

    def __init__(self, hosts: Hosts, recoveries: Recoveries) -> None:
        config = hosts.config
        self.fleet = Fleet(
            config.rollout,
            config.model.probe_tolerance,
            hosts.rollout,
            self._lost,
            deterministic=config.run.deterministic,
            patience_s=config.cluster.start_timeout_s,
        )
        self._hosts, self._deployment, self._recoveries = hosts, hosts.deployment, recoveries
        self._replaces = config.faults.restarts > 0
        self._unheard: dict[int, Death] = {}  # told while something happened to its place
        self._places: dict[int, asyncio.Task[None]] = {}  # what happens to a place now, by index
        self._wanted = {member.identity.index for member in self._deployment.rollouts}

    async def open(self) -> None:
        """Give traffic to those that the deployment has started; who has died since is replaced."""

        async def admit(member: Member) -> None:
            try:
                await self.fleet.admit(member)
            except Unavailable as problem:
                self.died(Death(member, str(problem)))

        await together(*map(admit, self._deployment.rollouts))

    @property
    def wanted(self) -> int:
        """How many there should be."""
        return len(self._wanted)

    def state(self, member: Member) -> str:
        """What a member does, in a word."""
        if member.identity in {known.identity for known in self.fleet.members}:
            leaves = member.identity.index not in self._wanted or member.identity.index in self._places
            return "leaving" if leaves else "serving"
        return "joining"

    def died(self, death: Death) -> None:
        """A replica is no more, or of no use: another takes its place."""
        self.fleet.lose(death.member.identity)
        if not self._to_be_replaced(death.member):
            return
        index = death.member.identity.index
        if index in self._places:
            self._unheard[index] = death  # of one that was just let in, perhaps
        else:
            self._begin(index, self._replace(death))

    def scale(self, count: int) -> None:
        """So many replicas: more are started now, and the last ones leave when what they play has ended.

        Raises:
            UserError: there must be one at least.
        """
        if not self._wanted:
            raise UserError(f"rollout={count}: this run plays nothing")
        if count < 1:
            raise UserError(f"rollout={count}: a run needs one replica at least")
        wanted = set(range(count))
        for index in sorted(wanted - self._wanted):
            self._begin(index, self._start(index))
        for index in sorted(self._wanted - wanted, reverse=True):
            self._begin(index, self._leave(index))
        self._wanted = wanted

    def move(self, member: Member) -> None:
        """Have a replica leave its node, and start again elsewhere; one that something happens to already does."""
        index = member.identity.index
        if index not in self._places:
            self._begin(index, self._move(index))

    async def close(self) -> None:
        """Begin nothing more, and close the channels; what is being started ends with the deployment."""
        tasks = list(self._places.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.fleet.close()

    def _begin(self, index: int, work: Coroutine[Any, Any, object]) -> None:
        before = self._places.get(index)

        async def in_turn() -> None:
            if before is not None:
                await asyncio.wait({before})
            await work

        task = self._places[index] = asyncio.create_task(in_turn(), name=f"rollout {index}")

        def ended(done: asyncio.Task[None]) -> None:
            if self._places.get(index) is done:
                del self._places[index]
            if not done.cancelled() and (problem := done.exception()):
                log.error("rollout %d: %s", index, problem, exc_info=problem)
            death = self._unheard.pop(index, None)
            if death and not done.cancelled() and not self._succeeded(death.member):
                self.died(death)

        task.add_done_callback(ended)

    def _lost(self, member: Member, problem: TandemError) -> None:
        """The fleet has lost one; if it is dead Ray will say why."""

        async def replace() -> None:
            await self._replace(await self._hosts.death_of(member, problem))

        index = member.identity.index
        if self._to_be_replaced(member) and index not in self._places:
            self._begin(index, replace())

    def _to_be_replaced(self, member: Member) -> bool:
        """Whether its place is to be filled, and no other has it."""
        index = member.identity.index
        now = [known.identity for known in self._deployment.rollouts if known.identity.index == index]
        return self._replaces and index in self._wanted and all(other == member.identity for other in now)

    def _succeeded(self, dead: Member) -> bool:
        """Whether another has taken its place."""
        now = [m.identity for m in self.fleet.members if m.identity.index == dead.identity.index]
        return bool(now) and now[0] != dead.identity

    async def _replace(self, death: Death) -> None:
        with self._recoveries.of(death) as recovery:
            member = await self._start(death.member.identity.index)
            recovery.done(f"started {member} in its place; what it played is played by others")

    async def _start(self, index: int) -> Member:
        """Start the next generation and give it traffic; again and again, at growing intervals, until it serves."""

        async def once() -> Member:
            try:
                member = await self._hosts.call(self._deployment.start_rollout, index)
                await self.fleet.admit(member)
            except TandemError as problem:
                log.warning("rollout %d does not start, the others go on: %s", index, problem)
                raise
            log.info("%s plays", member)
            return member

        return await retry(once, for_s=math.inf, first_s=PAUSE_S, longest_s=LONGEST_PAUSE_S, on=TandemError)

    async def _leave(self, index: int) -> None:
        await self.fleet.drain(index)
        await self._hosts.call(self._deployment.stop_rollout, index)
        log.info("rollout %d has left", index)

    async def _move(self, index: int) -> None:
        await self.fleet.drain(index)
        await self._start(index)
