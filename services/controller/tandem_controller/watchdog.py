"""Says who waits for whom when nothing goes on.

    every call is in WAITS -> nothing went on for faults.stall_s -> those waited for are asked how they fare
                           -> one line in the log; while it lasts again after 2, 4, 8, ... times as long

Whoever has worked since it was last asked has gone on: a long episode or train step is no alarm.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from tandem.obs import get_logger
from tandem.rpc.clients import CheckpointClient, LearnerClient, RolloutClient
from tandem.rpc.door import OPEN, Door
from tandem.runtime import WAITS, Wait, Waits, beside, together, until
from tandem.types import (
    CheckpointStatus,
    LearnerStatus,
    Role,
    RolloutStatus,
    TandemError,
    Unavailable,
)

log = get_logger(__name__)
LOOK_S = 5.0
ASKS = 4  # in the time after which it is told
ANSWER_S = 5.0
NAMED = 4  # of those waited for
CLIENTS = {Role.ROLLOUT: RolloutClient, Role.LEARNER: LearnerClient, Role.CHECKPOINT_MANAGER: CheckpointClient}


@dataclass(frozen=True, slots=True)
class Said:
    """What a service says of itself, in words. `work` is a number that changes while it works."""

    words: str
    work: int = 0


Ask = Callable[[Wait], Awaitable[Said]]


class Watchdog:
    """`ask` never raises; `tell` gets each line."""

    def __init__(
        self, waits: Waits, stall_s: float, ask: Ask, tell: Callable[[str], None] = lambda line: log.warning("%s", line)
    ) -> None:
        self._waits, self._stall_s, self._ask, self._tell = waits, stall_s, ask, tell
        self._work: dict[str, int] = {}  # by address, as it was last told
        self._moved = waits.moved  # of what follows: since then nothing went on, as far as is known
        self._asked_s, self._told = 0.0, 0  # how quiet it was when they were last asked; lines since

    async def look(self) -> None:
        """Tell what there is to tell. Quick while something goes on."""
        quiet_s, moved = self._waits.quiet_s, self._waits.moved
        if moved != self._moved:
            self._moved, self._asked_s, self._told = moved, 0.0, 0
        due = quiet_s >= self._stall_s * 2**self._told
        if not due and quiet_s < self._asked_s + self._stall_s / ASKS:
            return
        self._asked_s = quiet_s
        waits = self._waits.now()
        said = await self._asked(waits)
        if self._worked(said):
            self._waits.progressed()
        if due and self._waits.moved == moved:
            self._told += 1
            self._tell(line(quiet_s, waits, self._waits.lines(), said))
            if log.isEnabledFor(logging.DEBUG):
                log.debug("the controller's tasks: %s", stacks())

    async def _asked(self, waits: Sequence[Wait]) -> dict[str, Said]:
        others = {wait.address: wait for wait in waits if wait.address}
        return dict(zip(others, await together(*map(self._ask, others.values())), strict=True))

    def _worked(self, said: Mapping[str, Said]) -> bool:
        """Whether one of them has worked since it was asked before."""
        before, self._work = self._work, {address: answer.work for address, answer in said.items()}
        return any(before.get(address, work) != work for address, work in self._work.items())


def line(quiet_s: float, waits: Sequence[Wait], lines: Sequence[str], said: Mapping[str, Said]) -> str:
    """One line: who is waited for, for what, how long, and what they say of themselves."""
    told = f"nothing has gone on for {quiet_s:.0f} s"
    if not waits:
        return f"{told}, and the controller waits for nobody: it is at work of its own, or hangs"
    answers = (said[wait.address].words if wait.address in said else "" for wait in waits)
    parts = [f"{text}{words and f' ({words})'}" for text, words in zip(lines, answers, strict=True)]
    more = f"; and for {len(parts) - NAMED} more" if len(parts) > NAMED else ""
    return f"{told}: the controller waits for {'; for '.join(parts[:NAMED])}{more}"


def stacks() -> str:
    """Where each task of this loop stands, from its start to what it awaits."""
    stood = {task.get_name(): " > ".join(_stack(task.get_coro())) for task in asyncio.all_tasks()}
    return "; ".join(f"{name} at {where}" for name, where in sorted(stood.items()) if where)


def _stack(awaited: Any) -> Iterator[str]:
    while (frame := getattr(awaited, "cr_frame", None)) is not None and frame.f_lineno:
        yield f"{frame.f_code.co_qualname}:{frame.f_lineno}"
        awaited = awaited.cr_await


async def asked(wait: Wait, door: Door = OPEN, timeout_s: float = ANSWER_S) -> Said:
    """What the service that is waited for says of itself, or that it says nothing."""
    made = CLIENTS.get(wait.role) if wait.role else None
    if made is None:
        return Said("")
    client = made(wait.address, door)
    try:
        return described(await client.status(timeout_s=timeout_s))
    except Unavailable as problem:
        late = "DEADLINE_EXCEEDED" in str(problem)
        return Said(f"it does not answer within {timeout_s:g} s" if late else "it cannot be reached")
    except TandemError as problem:
        return Said(f"it says: {problem}")
    finally:
        await client.close()


def described(status: RolloutStatus | LearnerStatus | CheckpointStatus) -> Said:
    """A status in words, with what grows while the service works."""
    work, waits = status.activity.work, status.activity.waits
    if isinstance(status, RolloutStatus):
        health = "healthy" if status.healthy else "its engine is dead"
        words = f"version {status.policy_version}, {health}{', asleep' if status.asleep else ''}"
        words += f", {status.episodes_running} episodes running"
        work += status.episodes_done + status.turns_done + status.tokens_done
    elif isinstance(status, LearnerStatus):
        words = f"version {status.policy_version}, {status.world_size} ranks"
    else:
        latest = ", ".join(f"{kind} v{version}" for kind, version in status.latest.items()) or "nothing"
        words = f"{latest} published" + (f", {status.problem}" if status.problem else "")
    return Said(f"it says: {words}" + (f", waiting for {waits[0]}" if waits else ""), work)


@asynccontextmanager
async def watching(stall_s: float, door: Door = OPEN, waits: Waits = WAITS) -> AsyncIterator[None]:
    """Look again and again while the body runs."""
    dog = Watchdog(waits, stall_s, lambda wait: asked(wait, door))
    looking = until(dog.look, every_s=min(LOOK_S, stall_s / ASKS), for_s=math.inf)
    waits.progressed()  # what went on before was not watched
    async with beside(looking, lambda problem: log.error("the watchdog ended: %s", problem, exc_info=problem)):
        yield
