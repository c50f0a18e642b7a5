"""Who plays what: units of work dealt to the rollout replicas that there are, and dealt anew where one is lost.

    Fleet.play --> units --> queue --> the least loaded replica --> groups --> Fleet.play
                              ^               | lost
                              '---------------'  from their seeds

A unit is what one call of Rollout plays. It is one group, and any replica may play it. Where who is played together
must not depend on who is there (`run.deterministic`), units are fixed shares of the task, and a replica plays one at
a time: then nothing that becomes of replicas changes a bit.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from tandem.config import RolloutConfig
from tandem.obs import get_logger
from tandem.obs.instruments import UNITS_PLAYING, UNITS_TWICE, UNITS_WAITING
from tandem.obs.metrics import count, watch
from tandem.runtime import later
from tandem.types import DataCorrupt, NotFound, RolloutTask, StaleRequest, TandemError, Unavailable, UserError
from tandem_controller.units import Call, Play, Replica, Unit, given_up

log = get_logger(__name__)
GRACE_S = 60.0  # an episode's own deadline must come first: then it is a failed trajectory, not a failed call
RESERVE = 1.25  # episodes given to a replica for each seat: one that becomes free is taken at once
MOST_LOSSES = 3  # replicas that did not bring a unit to an end, and it is given up, as failed episodes
OF_THE_TASK = (UserError, NotFound, DataCorrupt)  # another replica would answer the same


class Dispatch:
    """The queue, and who plays.

    `on_gone` is told of a replica that does not answer: it calls `leave`. `stale` says whether a replica that is at
    another version than a task names is to blame, and not who asks.
    """

    def __init__(
        self,
        limits: RolloutConfig,
        *,
        fixed: bool,
        on_gone: Callable[[Replica, TandemError], None],
        stale: Callable[[RolloutTask], bool],
    ) -> None:
        self.replicas: list[Replica] = []
        self.queue: deque[Unit] = deque()
        self.twice = 0  # units begun elsewhere as well
        self._most_waiting = self._most_playing = 0
        self._limits, self._fixed = limits, fixed
        self._on_gone, self._stale = on_gone, stale
        watch(UNITS_WAITING, lambda: len(self.queue))
        watch(UNITS_PLAYING, lambda: sum(len(replica.calls) for replica in tuple(self.replicas)))

    def enter(self, replica: Replica) -> None:
        """Give it work from now on."""
        self.replicas.append(replica)
        replica.idle.set()
        self._assign()

    def leave(self, replica: Replica) -> int:
        """No more work for it; what it plays goes to others. Returns how many units that is. Once is enough."""
        if replica not in self.replicas:
            return 0
        self.replicas.remove(replica)
        calls = list(replica.calls)
        for call in calls:
            self._drop(call)
        orphans = [call.unit for call in calls if not call.unit.calls]
        for unit in reversed(orphans):
            self._again(unit, replica, f"{replica.member} was lost")
        self._assign()
        return len(orphans)

    def add(self, play: Play, shares: Iterable[tuple[int, ...]]) -> None:
        """Play a task, in units of these seeds."""
        self.queue += [Unit(play, replace(play.task, seeds=seeds), queued=True) for seeds in shares if seeds]
        self._assign()

    async def end(self, play: Play) -> None:
        """Have nothing of it played any more; a call whose groups are all there is left to end well."""
        self.queue = deque(unit for unit in self.queue if unit.play is not play)
        calls = [
            call for replica in self.replicas for call in replica.calls if call.unit.play is play and not call.whole
        ]
        for call in calls:
            self._drop(call)
        self._assign()
        await asyncio.gather(*(call.running for call in calls if call.running), return_exceptions=True)

    def timeout_s(self, groups: int, group_size: int) -> float:
        """Deadline of so many groups on one replica, in seconds: at worst, each wave of episodes takes its whole time.

        A replica plays what it has seats for; with `run.deterministic`, no more whole groups than that.
        """
        seats = self._limits.max_concurrent_episodes
        waves = max(math.ceil(groups * group_size / seats), math.ceil(groups / max(1, seats // group_size)))
        return waves * self._limits.episode_timeout_s + GRACE_S

    def figures(self) -> Mapping[str, float]:
        """For metrics, since the last time: most units that waited, and that were played, at once."""
        found = {
            "fleet/replicas": len(self.replicas),
            "fleet/most_waiting": max(self._most_waiting, len(self.queue)),
            "fleet/most_playing": self._most_playing,
            "fleet/begun_twice": self.twice,
        }
        self._most_waiting = self._most_playing = self.twice = 0
        return found

    def _assign(self) -> None:
        """Give what waits to the least loaded, in order. A unit that two replicas were lost with is played alone: of
        one that kills them all it is then known which it is."""
        alone = list[Unit]()
        while self.queue and (free := [replica for replica in self.replicas if self._free(replica)]):
            unit = self.queue.popleft()
            if unit.ended:
                continue
            if self._suspect(unit):
                free = [replica for replica in free if not replica.calls]
            if unit.calls:  # it is late: somewhere else
                free = [replica for replica in free if not unit.calls & replica.calls]
            if free:
                unit.queued = False
                self._start(unit, min(free, key=lambda r: (r.member.identity in unit.failed, r.episodes)))
            else:
                alone.append(unit)
        self.queue.extendleft(reversed(alone))
        self._most_waiting = max(self._most_waiting, len(self.queue))
        self._most_playing = max(self._most_playing, sum(len(replica.calls) for replica in self.replicas))

    def _suspect(self, unit: Unit) -> bool:
        return len(unit.failed) >= MOST_LOSSES - 1

    def _free(self, replica: Replica) -> bool:
        if replica.draining or not replica.calls:
            return not replica.draining
        if self._fixed or replica.episodes >= RESERVE * self._limits.max_concurrent_episodes:
            return False
        return not any(self._suspect(call.unit) for call in replica.calls)

    def _start(self, unit: Unit, replica: Replica) -> None:
        call = Call(unit, replica)
        replica.calls.add(call)
        unit.calls.add(call)
        replica.episodes += unit.episodes
        replica.idle.clear()
        size = unit.task.group_size
        playing = self._run(call, self.timeout_s(-(-replica.episodes // size), size))
        call.running = asyncio.create_task(playing, context=unit.play.context.copy())
        call.running.add_done_callback(lambda running: self._ended(call, running))
        if self._limits.straggler_s:
            call.late = later(self._limits.straggler_s, lambda: self._is_late(unit))

    def _is_late(self, unit: Unit) -> None:
        """Begin it elsewhere as well, from its seeds: the first to end counts. Where an engine's logits do not depend
        on what else it plays, both are the same to the bit, and which it is says nothing of what was played; else
        they are two draws, and the shorter one ends first more often: see the README."""
        if len(unit.calls) == 1:
            self.twice += 1
            count(UNITS_TWICE)
            self._queue(unit)
            self._assign()

    def _queue(self, unit: Unit) -> None:
        if not unit.queued:
            unit.queued = True
            self.queue.appendleft(unit)

    async def _run(self, call: Call, timeout_s: float) -> None:
        task, missing = call.unit.task, set(call.unit.task.seeds)
        async for group in call.replica.client.rollout(task, timeout_s):
            if group.seed not in task.seeds:
                raise TandemError(
                    f"{call.replica.member} gave a group of seed {group.seed}, which it was not asked for"
                )
            missing.discard(group.seed)
            call.whole = not missing
            call.unit.play.arrived(group)
        if missing:
            raise TandemError(f"{call.replica.member} ended without the groups of seeds {sorted(missing)}")

    def _drop(self, call: Call) -> None:
        """Whatever it still says is not listened to."""
        self._forget(call)
        if call.running:
            call.running.cancel()

    def _forget(self, call: Call) -> None:
        if call in call.replica.calls:
            if call.late:
                call.late.cancel()
            call.replica.calls.remove(call)
            call.unit.calls.discard(call)
            call.replica.episodes -= call.unit.episodes
            if not call.replica.calls:
                call.replica.idle.set()

    def _ended(self, call: Call, running: asyncio.Task[None]) -> None:
        problem = None if running.cancelled() else running.exception()
        unit, replica = call.unit, call.replica
        if call not in replica.calls:  # dropped; what it said last is of no interest
            return
        if isinstance(problem, Unavailable) or (isinstance(problem, StaleRequest) and self._stale(unit.task)):
            self._on_gone(replica, problem)
            return
        self._forget(call)
        if isinstance(problem, TandemError) and not isinstance(problem, (*OF_THE_TASK, StaleRequest)):
            if not unit.calls:
                self._again(unit, replica, str(problem))
        elif problem is not None:
            unit.play.fail(problem)
        else:
            for other in list(unit.calls):
                self._drop(other)
        self._assign()

    def _again(self, unit: Unit, replica: Replica, why: str) -> None:
        """Back to the head of the queue: it is the oldest. Having failed too often, several groups are played one by
        one, to see which of them it is; and a single one is no more."""
        unit.failed.append(replica.member.identity)
        if len(unit.failed) < MOST_LOSSES:
            self._queue(unit)
            return
        left = [replace(unit.task, seeds=(seed,)) for seed in unit.task.seeds if seed in unit.play.missing]
        if len(unit.task.seeds) > 1:
            log.warning("%d groups failed %d times together: they are played one by one", len(left), len(unit.failed))
            if unit.queued:  # it was late when it was lost
                self.queue.remove(unit)
            for task in reversed(left):
                self._queue(Unit(unit.play, task, unit.failed[1:]))
            return
        for task in left:
            why = f"tried on {len(unit.failed)} replicas, the last time: {why}"
            hint = "if its environment ends the process, set env.workers: processes"
            log.warning("task seed %d of %s is given up: %s; %s", task.seeds[0], task.env, why, hint)
            unit.play.arrived(given_up(task, why))
