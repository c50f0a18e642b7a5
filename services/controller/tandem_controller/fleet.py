"""All rollout replicas as one: play groups, load an adapter everywhere, sleep and wake together.

Replicas come (`admit`) and go (`lose`, `drain`) at any time; one that does not answer is lost, not the call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from tandem.config import RolloutConfig
from tandem.obs import get_logger
from tandem.rpc.clients import RolloutClient
from tandem.runtime import deadline, retry
from tandem.types import (
    AdapterLoaded,
    AdapterRef,
    Identity,
    Member,
    Pushed,
    RolloutTask,
    StaleRequest,
    TandemError,
    TrajectoryGroup,
    Unavailable,
    UserError,
)
from tandem_controller.agreement import agreed, proved, sift
from tandem_controller.dispatch import Dispatch
from tandem_controller.quiet import Quiet
from tandem_controller.units import Play, Replica, ask_all

log = get_logger(__name__)
T = TypeVar("T")
SETTLE_S = 10.0  # what was cut off needs a moment to end at a replica


class Fleet:
    """The rollout replicas, which all have the same limits.

    `probe_tolerance` (nats) is how far apart the probes of one policy may be on two replicas. `on_lost` is told, once,
    of a replica that does not answer, or not as the others. Without any replica, calls wait for one for `patience_s`.
    """

    def __init__(
        self,
        limits: RolloutConfig,
        probe_tolerance: float,
        connect: Callable[[Member], RolloutClient],
        on_lost: Callable[[Member, TandemError], None] = lambda member, problem: None,
        *,
        deterministic: bool = False,
        patience_s: float = 0.0,
    ) -> None:
        self.probe_tolerance = probe_tolerance
        self.serving: AdapterRef | None = None  # what a newcomer must serve
        self.asleep = False
        self._probe: float | None = None  # under it, of those that serve it
        self._connect, self._on_lost, self._patience_s = connect, on_lost, patience_s
        self._shares = limits.replicas if deterministic else 0  # of a task, whoever is there; 0: a group each
        self.quiet = Quiet()
        self._changing = asyncio.Lock()  # one change of what is served, or of who sleeps, at a time
        self._manned, self._deserted = asyncio.Event(), asyncio.Event()
        self._deserted.set()
        self._last_lost, self._lost_since = "", 0
        self._closing: set[asyncio.Task[Any]] = set()
        self._dispatch = Dispatch(limits, fixed=deterministic, on_gone=self._gone, stale=self._to_be_had)

    @property
    def members(self) -> tuple[Member, ...]:
        """Who is there, by index; those that drain among them."""
        return tuple(sorted((r.member for r in self._dispatch.replicas), key=lambda member: member.identity.index))

    async def admit(self, member: Member) -> None:
        """Wake a replica, have it load and prove what all others serve, then give it work. It takes the place of one
        with the same index and an earlier generation.

        Raises:
            StaleRequest: a later generation of it is there already.
            TandemError: it cannot, or serves another policy than the others. In any case it is not let in.
        """
        replica = Replica(member, self._connect(member))
        try:
            while not await self._let_in(replica):
                pass  # meanwhile the others serve something else, or went to sleep
        except BaseException:
            await replica.client.close()
            raise

    async def _let_in(self, replica: Replica) -> bool:
        """Have it serve what the others do, beside all else that goes on, and let it in if they still do."""
        serving, asleep, member, answer = self.serving, self.asleep, replica.member, None
        await replica.client.wake()
        if serving is not None:
            answer = await replica.client.load_adapter(serving)
        if asleep:
            await replica.client.sleep()
        async with self._changing:
            if self.serving is not serving or self.asleep != asleep:
                return False
            if serving is not None and answer is not None:
                self._probe = proved(serving, member, answer, self._probe, self.probe_tolerance)
            for other in self._of_index(member.identity.index):
                if other.member.identity.generation > member.identity.generation:
                    raise StaleRequest(f"{other.member} is there already: {member} is not let in")
                self._leave(other)
            self._manned.set()
            self._deserted.clear()
            self._dispatch.enter(replica)
            return True

    def lose(self, identity: Identity) -> None:
        """It is no more: what it was playing is played elsewhere from its seeds. Nobody is told: the caller knows."""
        for replica in self._of_index(identity.index):
            if replica.member.identity == identity:
                self._leave(replica)

    async def drain(self, index: int) -> None:
        """Give it no more work, wait until what it plays has ended, then let it go."""
        for replica in self._of_index(index):
            replica.draining = True
            await replica.idle.wait()
            self._leave(replica)

    async def play(
        self, task: RolloutTask, on_group: Callable[[TrajectoryGroup], None] = lambda group: None
    ) -> list[TrajectoryGroup]:
        """All groups of the task, ordered by seed; `on_group` sees each as it ends.

        Raises:
            Unavailable: there is no replica, nor did one come in time.
        """
        async with self.quiet.playing():
            return await self._play(Play(task, on_group))

    async def _play(self, play: Play) -> list[TrajectoryGroup]:
        seeds, shares = play.task.seeds, self._shares
        self._dispatch.add(play, [seeds[i::shares] for i in range(shares)] if shares else [(seed,) for seed in seeds])
        try:
            while not play.done.done():
                await self._someone()
                nobody = asyncio.ensure_future(self._deserted.wait())
                await asyncio.wait({play.done, nobody}, return_when=asyncio.FIRST_COMPLETED)
                nobody.cancel()
            play.done.result()
        finally:
            play.done.cancel()
            await self._dispatch.end(play)
        return sorted(play.groups, key=lambda group: group.seed)

    async def load(self, adapter: AdapterRef) -> float:
        """Have every replica serve `adapter`; the longest time that a replica took, in seconds. One that cannot is
        lost, if most can.

        Raises:
            TandemError: most cannot, or acknowledged other weights than asked for.
        """
        async with self._changing:
            answers = await ask_all(self._dispatch.replicas, lambda replica: replica.client.load_adapter(adapter))
            loaded = self._agreed(adapter, answers)
        await self._someone()
        return max((answer.seconds for answer in loaded), default=0.0)

    async def load_pushed(
        self, adapter: AdapterRef, pushed: Pushed, missed: Mapping[str, str]
    ) -> dict[Identity, AdapterLoaded | TandemError]:
        """Wake every replica and have it serve the adapter that the ranks have sent to it: what each acknowledged, or
        why it did not. `missed` says by address who did not get it."""

        async def ask(replica: Replica) -> AdapterLoaded:
            if why := missed.get(replica.member.address):
                raise TandemError(why)
            await replica.client.wake()
            return await replica.client.load_adapter(adapter, pushed)

        async with self._changing:
            self.asleep = False
            return {member.identity: said for member, said in (await ask_all(self._dispatch.replicas, ask)).items()}

    async def settle(self, published: AdapterRef, pushed: Mapping[Identity, AdapterLoaded | TandemError]) -> None:
        """Hold what `load_pushed` gave against what was published; who did not get it loads that. One that can in
        neither way is lost, if most can.

        Raises:
            TandemError: most serve other weights than were published, or can load them in neither way.
        """
        name = published.name

        async def from_store(replica: Replica) -> AdapterLoaded:
            answer = pushed.get(replica.member.identity, TandemError("it has come since"))
            if isinstance(answer, AdapterLoaded):
                return answer
            log.warning("%s did not get %s directly: %s; it loads it from the store", replica.member, name, answer)
            try:
                await replica.client.wake()
                return await replica.client.load_adapter(published)
            except TandemError as problem:
                raise type(problem)(
                    f"{replica.member}: cannot load {name} from the store: {problem}; nor directly: {answer}"
                ) from problem

        async with self._changing:
            self._agreed(published, await ask_all(self._dispatch.replicas, from_store))
        await self._someone()

    async def sleep(self) -> None:
        """Free the device memory of all replicas."""
        async with self._changing:
            self.asleep = True
            await self._told(lambda client: retry(client.sleep, for_s=SETTLE_S, on=StaleRequest))

    async def wake(self) -> None:
        """Take it back."""
        async with self._changing:
            await self._told(lambda client: client.wake())
            self.asleep = False

    async def check(self, base_model: str) -> None:
        """Raise UserError unless every replica serves the given base model (by fingerprint)."""
        for member, status in (await self._told(lambda client: client.status())).items():
            if status.base_model != base_model:
                raise UserError(
                    f"{member} has base model {status.base_model[:12]}, the learner {base_model[:12]}; "
                    "give both one folder"
                )

    def figures(self) -> dict[str, float]:
        """For metrics, since the last time."""
        found = {**self._dispatch.figures(), "fleet/lost": self._lost_since}
        self._lost_since = 0
        return found

    async def close(self) -> None:
        """Close the channels."""
        for replica in list(self._dispatch.replicas):
            self._leave(replica)
        await asyncio.gather(*self._closing)

    def _to_be_had(self, task: RolloutTask) -> bool:
        """Whether a replica that serves what it should would play the task."""
        if self.serving is None or self.asleep:
            return False
        version = self.serving.version
        return task.policy_version == version or (task.may_advance and task.policy_version < version)

    async def _someone(self) -> None:
        """Wait until there is a replica."""
        try:
            async with deadline(self._patience_s, "a rollout replica"):
                await self._manned.wait()
        except Unavailable as problem:
            raise Unavailable(
                f"no rollout replica is left, and none came within {self._patience_s:g} s; {self._last_lost}"
            ) from problem

    async def _told(self, ask: Callable[[RolloutClient], Awaitable[T]]) -> dict[Member, T]:
        """What the replicas answer; who does not is lost, if most do."""
        answers, lost = sift(await ask_all(self._dispatch.replicas, lambda replica: ask(replica.client)))
        self._lost(lost)
        return answers

    def _agreed(
        self, adapter: AdapterRef, answers: Mapping[Member, AdapterLoaded | TandemError]
    ) -> list[AdapterLoaded]:
        """What those say that serve `adapter`; the others are lost. Newcomers must serve it from now on."""
        good, lost = agreed(adapter, answers, self.probe_tolerance)
        self.serving = adapter
        self._probe = next((answer.probe_logprob for answer in good.values()), None)
        self._lost(lost)
        return list(good.values())

    def _lost(self, lost: Mapping[Member, TandemError]) -> None:
        for replica in [replica for replica in self._dispatch.replicas if replica.member in lost]:
            self._gone(replica, lost[replica.member])

    def _gone(self, replica: Replica, problem: TandemError) -> None:
        self._last_lost = f"{replica.member} was lost: {problem}"
        self._lost_since += 1
        units = self._leave(replica)
        log.warning("%s; %d units of work that it had go to others", self._last_lost, units)
        self._on_lost(replica.member, problem)

    def _leave(self, replica: Replica) -> int:
        if replica not in self._dispatch.replicas:
            return 0
        if len(self._dispatch.replicas) == 1:
            self._manned.clear()
            self._deserted.set()
        closing = asyncio.ensure_future(replica.client.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
        return self._dispatch.leave(replica)

    def _of_index(self, index: int) -> list[Replica]:
        return [replica for replica in self._dispatch.replicas if replica.member.identity.index == index]
