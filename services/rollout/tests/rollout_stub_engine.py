"""A deterministic engine for tests of what the core does with an engine: no model, answers by rule."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tandem.model.chat import ChatFormat
from tandem.model.frames import Frame
from tandem.types import FinishReason, Unavailable
from tandem_rollout.engine import Completion, ContextFull, LocalAdapter, Request

TOKENS_PER_IMAGE = 3
ENGINE_RANK = 8  # of adapters in the tests of the real engine


@dataclass
class StubEngine:
    """Answers with `answer(request number)`; the text's ids are closed by <|im_end|> unless `cut`."""

    chat: ChatFormat
    answer: Callable[[int], str] = lambda number: "('move', 0)"
    cut: bool = False
    fail_at: int = -1  # request number that raises Unavailable
    hang_at: int = -1  # request number that never answers
    max_model_len: int = 10_000
    refuses: Exception | None = None  # what `serve` raises
    has_sleep_mode: bool = False
    healthy: bool = True
    policy_version: int = 0
    requests: list[Request] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)  # requests of each call of generate_together
    forgotten: int = 0
    running: int = 0
    most_running: int = 0
    hold: asyncio.Event | None = None  # requests wait for it
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    def expand(self, prompt_ids: Sequence[int], frames: Sequence[Frame]) -> tuple[int, ...]:
        return tuple(
            i for token in prompt_ids for i in [token] * (TOKENS_PER_IMAGE if token == self.chat.image_id else 1)
        )

    async def generate(self, request: Request) -> Completion:
        number = len(self.requests)
        self.requests.append(request)
        await self._run(+1)
        self.most_running = max(self.most_running, self.running)
        try:
            await asyncio.sleep(0)
            if self.hold is not None:
                await self.hold.wait()
            if number == self.fail_at:
                raise Unavailable("engine gone")
            if number == self.hang_at:
                await asyncio.Event().wait()
            expanded = self.expand(request.prompt_ids, request.frames)
            if len(expanded) + request.sampling.max_tokens > self.max_model_len:
                raise ContextFull(f"{len(expanded)} ids do not fit")
        finally:
            await self._run(-1)
        ids = (*self.chat.encode(self.answer(number)), *(() if self.cut else (self.chat.end_id,)))
        finish = FinishReason.LENGTH if self.cut else FinishReason.STOP
        return Completion(expanded, ids, tuple(-0.5 for _ in ids), finish, self.policy_version)

    async def generate_together(self, requests: Sequence[Request]) -> list[Completion | BaseException]:
        self.rounds.append(len(requests))
        return await asyncio.gather(*map(self.generate, requests), return_exceptions=True)

    async def forget(self) -> None:
        self.forgotten += 1

    async def until_running(self, number: int) -> None:
        """Return once so many requests are running."""
        async with asyncio.timeout(10), self.changed:
            await self.changed.wait_for(lambda: self.running == number)

    async def _run(self, more: int) -> None:
        self.running += more
        async with self.changed:
            self.changed.notify_all()

    async def serve(self, adapter: LocalAdapter | None) -> float:
        if self.refuses is not None:
            raise self.refuses
        self.policy_version = adapter.version if adapter else 0
        self.folder = adapter.folder if adapter else None
        return -1.5

    async def sleep(self) -> bool:
        return self.has_sleep_mode

    async def wake(self) -> None: ...

    async def answers(self) -> bool:
        return self.healthy

    async def died(self) -> str:
        return await asyncio.get_running_loop().create_future()

    async def close(self) -> None: ...
