"""Groups played ahead of the learner, and learned from in order.

Batch b is what policy version b learns from. With `rollout.max_staleness` S, batches up to b + S may be in play:

    learner at version     0          1          2
    in play              0 .. S    1 .. S+1   2 .. S+2

A batch is waited for, however long its longest episode takes, so nothing is thrown away for its age, every group is
learned from exactly once, and none is more than S versions old. (AReaL, Fu et al. 2025, arXiv:2505.24298, bounds
staleness by what it submits, too, but takes what ends first.) S = 0 is the synchronous loop.

What is played goes to a journal at once: a run that is killed plays none of it twice.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from json import dumps
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from tandem.config import Config
from tandem.envs import tasks
from tandem.obs import get_logger
from tandem.obs.instruments import GROUPS_AHEAD, JOURNAL_BACKLOG
from tandem.obs.metrics import watch
from tandem.obs.tracing import Carrier, current, inject
from tandem.types import ContextPolicy, RolloutTask, Sampling, TrajectoryGroup
from tandem_controller.fleet import Fleet
from tandem_controller.journal import Journal, Position, Step
from tandem_controller.run_dir import RunDir

log = get_logger(__name__)
T = TypeVar("T")


@dataclass(slots=True)
class _Batch:
    seeds: tuple[int, ...]
    playing: asyncio.Task[list[TrajectoryGroup]] | None = None
    asked: Carrier = field(default_factory=dict)  # the trace of the step that asked for it


class Pipeline:
    """Use as an async context manager: it ends what is in play."""

    def __init__(
        self,
        fleet: Fleet,
        config: Config,
        run: RunDir,
        start: Position,
        on_group: Callable[[TrajectoryGroup], None] = lambda group: None,
        saved: int | None = None,
    ) -> None:
        """`start` is where the run goes on; `saved` the version of the latest training state, the same if None."""
        self.fleet, self.config = fleet, config
        self._ahead = deque(_Batch(seeds) for seeds in start.ahead)
        self._next_seed = start.next_seed
        self._journal = open_journal(config, run.path)
        self._saved = start.version if saved is None else saved
        self._on_group = on_group
        self._start = start
        self._kept: dict[int, TrajectoryGroup] = {}  # played before the start, by seed
        self._waiting: dict[int, TrajectoryGroup] = {}  # played since, not learned from yet
        self._thread = ThreadPoolExecutor(1, "journal")
        self._writes: list[asyncio.Future[None]] = []
        watch(JOURNAL_BACKLOG, lambda: sum(not write.done() for write in tuple(self._writes)))
        watch(GROUPS_AHEAD, lambda: len(self._waiting))

    async def __aenter__(self) -> Pipeline:
        self._kept = await self._in_thread(self._recover)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        playing = [batch.playing for batch in self._ahead if batch.playing]
        for play in playing:
            play.cancel()
        await asyncio.gather(*playing, *self._writes, return_exceptions=True)
        self._thread.shutdown()

    @property
    def ahead(self) -> bool:
        """True where engines play while the learner trains."""
        return self.config.rollout.max_staleness > 0

    async def take(self, version: int) -> list[TrajectoryGroup]:
        """The groups of batch `version`, by seed; the fleet serves that version, and may now play up to S further."""
        reach = min(self.config.rollout.max_staleness + 1, self.config.run.steps - version)
        while len(self._ahead) < reach:
            self._ahead.append(_Batch(self.draw(self.config.rollout.groups_per_step)))
        for index, batch in enumerate(list(self._ahead)[:reach]):
            if batch.playing is None:
                batch.playing = asyncio.create_task(self._play(version, version + index, batch.seeds))
                batch.asked = inject()
        batch = self._ahead[0]
        assert batch.playing is not None
        current().link(batch.asked)
        groups = await batch.playing
        self._ahead.popleft()
        return await self._learned(groups)

    async def refill(self, version: int, count: int) -> list[TrajectoryGroup]:
        """So many further groups, played now."""
        return await self._learned(await self._play(version, version, self.draw(count)))

    def draw(self, count: int) -> tuple[int, ...]:
        """The next seeds."""
        seeds = tasks.seeds(self.config.env.id, "train", count, self._next_seed)
        self._next_seed = seeds[-1] + 1
        return tuple(seeds)

    def position(self, version: int) -> Position:
        """Where a resume at `version` goes on, if all before it is learned."""
        return Position(version, self._next_seed, tuple(batch.seeds for batch in self._ahead))

    async def learning(self, version: int, groups: Sequence[TrajectoryGroup]) -> None:
        """The learner is about to be given these groups. Once this is done it is known for good."""
        step = Step(tuple(group.seed for group in groups), self.position(version + 1))
        await self._in_thread(self._journal.add_step, step)

    async def begin_save(self, version: int) -> None:
        """The state of `version` is being saved: from here on the journal holds what that one has not learned from."""
        unlearned = [*self._kept.values(), *self._waiting.values()]
        await self._in_thread(self._journal.begin, version, unlearned)

    async def saved(self) -> None:
        """It is."""
        await self._in_thread(self._journal.settle)

    async def _play(self, version: int, batch: int, seeds: Sequence[int]) -> list[TrajectoryGroup]:
        """Groups that batch `batch` learns from, those not played yet at `version`."""
        staleness = self.config.rollout.max_staleness
        kept = [self._kept[seed] for seed in seeds if seed in self._kept]
        known = [group for group in kept if group.oldest_version >= batch - staleness]
        missing = [seed for seed in seeds if seed not in {group.seed for group in known}]
        if not missing:
            return known
        if self.config.run.deterministic:  # who is played together shows in the last bits: the batch, or none of it
            known, missing = [], list(seeds)
        task = training_task(self.config, version, missing)
        return [*known, *await self.fleet.play(task, self._arrived)]

    def _arrived(self, group: TrajectoryGroup) -> None:
        self._waiting[group.seed] = group
        self._writes.append(asyncio.ensure_future(self._in_thread(self._journal.add, group)))
        self._on_group(group)

    async def _learned(self, groups: Sequence[TrajectoryGroup]) -> list[TrajectoryGroup]:
        writes, self._writes = self._writes, []
        await asyncio.gather(*writes)
        for group in groups:
            self._waiting.pop(group.seed, None)
            self._kept.pop(group.seed, None)
        return sorted(groups, key=lambda group: group.seed)

    async def _in_thread(self, call: Callable[..., T], *arguments: object) -> T:
        """The journal's one thread keeps its calls in order."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, call, *arguments)

    def _recover(self) -> dict[int, TrajectoryGroup]:
        """What the journal holds and nothing was learned from, but for what later versions played: those are to be made
        anew."""
        start, journal = self._start, self._journal
        due = {seed for seeds in start.ahead for seed in seeds}
        drawn = journal.groups(lambda seed: seed in due or seed >= start.next_seed)
        found = {group.seed: group for group in drawn if _newest_version(group) <= start.version}
        journal.begin(self._saved, found.values(), journal.learned(self._saved, start.version))
        journal.settle()
        if found:
            log.info("%d groups were played already when the run ended: they are not played again", len(found))
        return found


def training_task(config: Config, version: int, seeds: Sequence[int]) -> RolloutTask:
    """What to ask the fleet for."""
    rollout = config.rollout
    return RolloutTask(
        env=config.env.id,
        seeds=tuple(seeds),
        group_size=rollout.group_size,
        policy_version=version,
        sampling=Sampling(rollout.temperature, max_tokens=rollout.max_tokens),
        context=ContextPolicy(config.env.window),
        max_turns=config.env.max_turns,
        sampling_seed=config.run.seed,
        may_advance=rollout.max_staleness > 0,
    )


def open_journal(config: Config, run: Path) -> Journal:
    """Of the run in a folder."""
    return Journal(run / "journal", _digest(config))


async def learned(journal: Journal, since: Position, until: int) -> AsyncIterator[tuple[int, list[TrajectoryGroup]]]:
    """What versions `since` .. `until` - 1 learned from. Raises as `Journal.learned`."""
    steps = journal.learned(since.version, until)
    while (found := await asyncio.to_thread(next, steps, None)) is not None:
        step, groups = found
        yield step.version, groups


def _digest(config: Config) -> str:
    """Of all that says how a group is played but for the adapter."""
    task = asdict(replace(training_task(config, 0, ()), may_advance=False))
    settings = {**task, "model": config.model.path, "dtype": config.model.dtype}
    return sha256(dumps(settings, sort_keys=True).encode()).hexdigest()[:8]


def _newest_version(group: TrajectoryGroup) -> int:
    return max((turn.policy_version for t in group.trajectories for turn in t.turns), default=group.policy_version)
