"""Rank 0: the learner's one voice. Checks a request, has all ranks carry it out, and remembers its answer.

A retry with the same request id gets the first one's answer, also while that is still at work. Orders go out one
after the other; the sending that an export has begun goes on beside them, one a kind. If a rank fails in the middle
of a step, ranks may disagree: the learner then refuses to train until a Restore has put all of them in order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

from tandem.obs import get_logger
from tandem.obs.instruments import POLICY_VERSION
from tandem.obs.metrics import watch
from tandem.obs.tracing import inject
from tandem.runtime import WAITS, deadline
from tandem.types import (
    AdapterRef,
    Exported,
    LearnerStatus,
    PublishKind,
    SnapshotTaken,
    StaleRequest,
    TandemError,
    TrainResult,
    TrajectoryGroup,
    Unavailable,
)
from tandem_learner.channel import RELEASED, Channel
from tandem_learner.figures import warnings
from tandem_learner.measured import record_step
from tandem_learner.orders import (
    Answer,
    Destinations,
    Export,
    Order,
    Restore,
    Snapshot,
    Stop,
    Train,
    decode_answer,
    encode_order,
    sent_of,
)
from tandem_learner.rank import Rank
from tandem_learner.requests import Requests
from tandem_learner.validate import Limits, check_groups

log = get_logger(__name__)
STOP_S = 5.0  # how long followers have to end, and what rank 0 waits beyond a rank's own deadline


@dataclass(frozen=True, slots=True)
class _Asked:
    """The last export of a kind that was asked for."""

    request_id: str
    version: int
    address: str


class Leader:
    """See the module. `channels`: one per follower, in order of rank. `lost`: the reason, once a rank is lost."""

    def __init__(
        self, rank: Rank, channels: Sequence[Channel], timeout_s: float, lost: asyncio.Future[str] | None = None
    ) -> None:
        self.rank, self.channels, self.timeout_s = rank, channels, timeout_s
        self._lost = lost
        self._requests = Requests(lost)
        self._threads = ThreadPoolExecutor(max(len(channels), 1), "answers")
        self._report_threads = ThreadPoolExecutor(len(PublishKind), "reports")
        self._one_at_a_time = asyncio.Lock()
        self._one_of_a_kind = {kind: asyncio.Lock() for kind in PublishKind}
        self._snapshots: dict[PublishKind, SnapshotTaken] = {}
        self._exports: dict[PublishKind, _Asked] = {}
        self._number, self._ticket = 0, 0
        self._broken = ""
        self._status = rank.core.status()
        watch(POLICY_VERSION, lambda: self._status.policy_version)

    def status(self) -> LearnerStatus:
        """What the learner is; answers while a step runs."""
        return self._status

    def known(self, request_id: str) -> bool:
        """True where a request of this id was answered, or is at work."""
        return self._requests.known(request_id)

    def check_version(self, expected: int) -> None:
        """Raises StaleRequest where the learner is at another version."""
        if expected != self._status.policy_version:
            raise StaleRequest(f"learner is at version {self._status.policy_version}, the request expects {expected}")

    async def train_step(
        self, request_id: str, expected_version: int, groups: Sequence[TrajectoryGroup]
    ) -> TrainResult:
        """Make the next version of the groups.

        Raises:
            StaleRequest: the learner is at another version.
            UserError: the groups cannot be learned from.
            Unavailable: a rank failed; Restore before the next step.
        """

        async def work() -> TrainResult:
            self.check_version(expected_version)
            if self._broken:
                raise Unavailable(f"learner needs a Restore first: {self._broken}")
            await asyncio.to_thread(check_groups, groups, self._limits(expected_version))
            try:
                learned = (await self._all(Train(tuple(groups))))[0]
            except BaseException as problem:  # also what nobody foresaw leaves the ranks in doubt
                self._broken = _in_words(problem)
                raise
            metrics = learned["metrics"]
            for warning in warnings(metrics, self.rank.core.config):
                log.warning("version %d: %s", expected_version, warning)
            record_step(metrics)
            return TrainResult(self._advance(expected_version + 1), metrics, learned["advantages"])

        return await self._requests.once(request_id, work, self._one_at_a_time)

    async def snapshot(self, request_id: str, expected_version: int, kind: PublishKind) -> SnapshotTaken:
        """Have every rank copy its shard to host memory, to be exported from there whatever the learner does next.

        Waits for an export of the kind that is under way: its copy would be written over. The same again is harmless.

        Raises:
            StaleRequest: the learner is at another version.
            UserError: the learner trains nothing of this kind.
            Unavailable: a rank failed, or there is no such version since a step failed half way.
        """
        work = partial(self._hold, expected_version, kind)
        return await self._requests.once(request_id, work, self._one_of_a_kind[kind])

    async def export(self, request_id: str, expected_version: int, kind: PublishKind, to: Destinations) -> Exported:
        """Have every rank send its shard from the snapshot of that version, which is taken first where there is none.

        Asked for again with another checkpoint manager, it goes there, and the one under way is given up: a manager
        that has died comes back somewhere else.

        Raises:
            As `snapshot`, and what the checkpoint manager raises.
        """
        last = self._exports.get(kind)
        if last and last.version == expected_version and last.address != to.checkpoint_address:
            why = f"{kind} v{expected_version} goes to the checkpoint manager at {to.checkpoint_address} instead"
            self._requests.give_up(last.request_id, why)
        self._exports[kind] = _Asked(request_id, expected_version, to.checkpoint_address)

        async def work() -> Exported:
            await self._hold(expected_version, kind)
            self._ticket += 1
            order = Export(kind, expected_version, to, self._ticket)
            async with self._one_at_a_time:
                await self._all(order)
            return await self._sent(order)

        return await self._requests.once(request_id, work, self._one_of_a_kind[kind])

    async def restore(self, request_id: str, adapter: AdapterRef, state: AdapterRef | None) -> int:
        """Have every rank continue from published folders, at the adapter's version. Raises as the core."""

        async def work() -> int:
            self._snapshots.clear()
            await self._all(Restore(adapter, state))
            self._broken = ""
            return self._advance(adapter.version)

        return await self._requests.once(request_id, work, self._one_at_a_time)

    async def stop(self) -> None:
        """Send the other ranks home and see them off: the store they wait on ends with this process."""
        if self.channels and not (self._lost and self._lost.done()):
            number, _ = await self._post(Stop())
            waits = [self._answer(number, channel, STOP_S, "Stop") for channel in self.channels]
            await asyncio.gather(*waits, return_exceptions=True)
        await self.rank.stop_sending(*PublishKind)
        await self._requests.stop()  # its threads must end: a rank that is gone will not answer
        for threads in (self._threads, self._report_threads):
            threads.shutdown(wait=False, cancel_futures=True)

    def _limits(self, version: int) -> Limits:
        core = self.rank.core
        rollout, supervised = core.config.rollout, core.config.learner.algo.supervised
        return Limits(
            group_size=None if supervised else rollout.group_size,
            version=None if supervised else version,
            context=rollout.engine.max_model_len,
            vocab_size=core.vocab_size,
            forbidden=core.forbidden,
            image_id=core.settings.image_id,
            image_tokens=core.image_tokens,
        )

    def _advance(self, version: int) -> int:
        self._status = replace(self._status, policy_version=version)
        return version

    async def _hold(self, version: int, kind: PublishKind) -> SnapshotTaken:
        """Have all ranks hold a copy of this version; under the kind's lock."""
        held = self._snapshots.get(kind)
        if held and held.policy_version == version:
            return held
        async with self._one_at_a_time:
            self.check_version(version)
            self._snapshots.pop(kind, None)
            answers = await self._all(Snapshot(kind))
            size, seconds = sum(a["bytes"] for a in answers), max(a["seconds"] for a in answers)
            taken = self._snapshots[kind] = SnapshotTaken(version, size, seconds)
        return taken

    async def _sent(self, order: Export) -> Exported:
        """What all ranks have sent, in order of rank, or the first failure, at once."""
        what = f"learner: sending {order.kind} v{order.version} from all ranks"
        try:
            async with deadline(self.timeout_s + STOP_S, what):
                mine, others = await asyncio.gather(self.rank.sent(order.kind), self._reports(order.ticket))
        except BaseException:  # the thread that waits for reports must end
            if self.channels:
                self.channels[0].release_reports(order.ticket)
            raise
        sent = [sent_of(answer) for answer in (mine, *others)]
        missed = {address: why for rank in reversed(sent) for address, why in rank.missed.items()}
        return Exported(tuple(rank.shard for rank in sent), missed)

    async def _reports(self, ticket: int) -> list[Answer]:
        if not self.channels:
            return []
        return await asyncio.get_running_loop().run_in_executor(self._report_threads, self._reported, ticket)

    def _reported(self, ticket: int) -> list[Answer]:
        ranks = [channel.rank for channel in self.channels]
        reports = self.channels[0].await_reports(ticket, ranks, self.timeout_s)
        told = {rank: decode_answer(report, rank) for rank, report in reports}  # raises the first failure to come
        return [told[rank] for rank in ranks]

    async def _all(self, order: Order) -> list[Answer]:
        """All ranks' answers in order of rank, or the first failure: at once, for others may hang on the one
        that failed.

        A Restore waits for all: nobody hangs in it, and where all refuse nothing has changed.
        """
        number, pieces = await self._post(order)
        what = type(order).__name__
        others = [self._answer(number, channel, self.timeout_s, what) for channel in self.channels]
        try:
            async with deadline(self.timeout_s + STOP_S, f"learner: {what} on all ranks"):
                answers = await asyncio.gather(
                    self.rank.obey(order), *others, return_exceptions=isinstance(order, Restore)
                )
        except BaseException as problem:  # whatever it was, the threads that wait for answers must end
            if isinstance(order, Restore):
                self._broken = _in_words(problem)
            for channel in self.channels:
                channel.release_answer(number)
            raise
        problems = [answer for answer in answers if isinstance(answer, BaseException)]
        if problems:
            if len(problems) < len(answers) or not all(isinstance(problem, TandemError) for problem in problems):
                self._broken = _in_words(problems[0])
            raise problems[0]
        for channel in self.channels:
            channel.forget(number, pieces)
        return [answer for answer in answers if not isinstance(answer, BaseException)]

    async def _post(self, order: Order) -> tuple[int, int]:
        """Give an order to all followers; its number and how many pieces it took."""
        # encoded first: a number that is taken must reach the followers, who wait for one after the other
        data = await asyncio.to_thread(encode_order, order, inject()) if self.channels else b""
        number, self._number = self._number, self._number + 1
        if not self.channels:
            return number, 0
        pieces = await asyncio.to_thread(self.channels[0].post_pieces, number, data)
        for channel in self.channels:
            channel.go(number, pieces)
        return number, pieces

    async def _answer(self, number: int, channel: Channel, timeout_s: float, what: str) -> Answer:
        wait = partial(channel.await_answer, number, timeout_s)
        with WAITS.on(f"learner rank {channel.rank}", what):
            data = await asyncio.get_running_loop().run_in_executor(self._threads, wait)
        return decode_answer(data, channel.rank) if data != RELEASED else {}


def _in_words(problem: BaseException) -> str:
    """Never empty, as the message alone may be."""
    return str(problem) if isinstance(problem, TandemError) else f"{type(problem).__name__}: {problem}"
