"""The rollout replicas of a run: who dies is replaced, more are started and some let go while the run goes on.

    death, or a replica that does not answer -> no more traffic, its groups elsewhere (fleet) -> the next generation
    -> it loads and proves what the others serve (fleet.admit) -> traffic

All of it happens beside the loop, which goes on with the replicas there are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from tandem.obs import get_logger
from tandem.runtime import together
from tandem.types import Death, Member, TandemError, UserError
from tandem_controller.fleet import Fleet
from tandem_controller.hosts import Hosts
from tandem_controller.recoveries import Recoveries

log = get_logger(__name__)


class Replicas:
    """See the module. A replica is started `faults.restarts` times in a row before its place is given up."""

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
        self._restarts = config.faults.restarts
        self._places: dict[int, asyncio.Task[None]] = {}  # what happens to a place now, by index
        self._wanted = {member.identity.index for member in self._deployment.rollouts}

    async def open(self) -> None:
        """Give traffic to those that the deployment has started."""
        await together(*map(self.fleet.admit, self._deployment.rollouts))

    def state(self, member: Member) -> str:
        """What a member does, in a word."""
        if member.identity in {known.identity for known in self.fleet.members}:
            leaves = member.identity.index not in self._wanted or member.identity.index in self._places
            return "leaving" if leaves else "serving"
        return "joining"

    def died(self, death: Death) -> None:
        """A replica is no more, or of no use: another takes its place."""
        self.fleet.lose(death.member.identity)
        if self._to_be_replaced(death.member):
            self._begin(death.member.identity.index, self._replace(death))

    def scale(self, count: int) -> None:
        """So many replicas: more are started now, and the last ones leave when what they play has ended.

        Raises:
            UserError: there must be one at least.
        """
        if count < 1:
            raise UserError(f"rollout={count}: a run needs one replica at least")
        wanted = set(range(count))
        for index in sorted(wanted - self._wanted):
            self._begin(index, self._start(index))
        for index in sorted(self._wanted - wanted, reverse=True):
            self._begin(index, self._leave(index))
        self._wanted = wanted

    def move(self, member: Member) -> None:
        """Have a replica leave its node, and start again elsewhere."""
        index = member.identity.index
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

        task.add_done_callback(ended)

    def _lost(self, member: Member, problem: TandemError) -> None:
        """The fleet has lost one; if it is dead Ray will say why."""

        async def replace() -> None:
            await self._replace(await self._hosts.death_of(member, problem))

        if self._to_be_replaced(member):
            self._begin(member.identity.index, replace())

    def _to_be_replaced(self, member: Member) -> bool:
        index, now = member.identity.index, {known.identity for known in self._deployment.rollouts}
        return index in self._wanted and index not in self._places and member.identity in now

    async def _replace(self, death: Death) -> None:
        with self._recoveries.of(death) as recovery:
            if member := await self._start(death.member.identity.index):
                recovery.done(f"started {member} in its place; what it played is played by others")

    async def _start(self, index: int) -> Member | None:
        """Start the next generation and give it traffic; None where that has failed too often."""
        problem: TandemError | None = None
        for _ in range(self._restarts):
            try:
                member = await self._hosts.call(self._deployment.start_rollout, index)
                await self.fleet.admit(member)
            except TandemError as found:
                problem = found
                log.warning("rollout %d does not start: %s", index, problem)
            else:
                log.info("%s plays", member)
                return member
        self._wanted.discard(index)
        log.error("rollout %d is given up after %d starts, the others go on: %s", index, self._restarts, problem)
        return None

    async def _leave(self, index: int) -> None:
        await self.fleet.drain(index)
        await self._hosts.call(self._deployment.stop_rollout, index)
        log.info("rollout %d has left", index)

    async def _move(self, index: int) -> None:
        await self.fleet.drain(index)
        await self._start(index)
