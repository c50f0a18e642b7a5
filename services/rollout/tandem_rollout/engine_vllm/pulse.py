"""Whether the engine lives: its process is there, and answers what it is asked in time."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from vllm.exceptions import VLLMClientError, VLLMError
from vllm.v1.engine.exceptions import EngineDeadError

from tandem.runtime import deadline
from tandem.types import Unavailable, UserError

WHO = "vLLM's engine process"


class Pulse:
    """Of one engine, whose calls have `timeout_s` seconds each."""

    def __init__(self, llm: Any, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._llm = llm
        self._answered = 0  # requests
        self._lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    @property
    def hangs(self) -> bool:
        """Whether it must be replaced, though its process is there."""
        return self._lost.done()

    def answered(self) -> None:
        """A request has its answer."""
        self._answered += 1

    def lost(self, why: str) -> None:
        """It must be replaced."""
        if not self._lost.done():
            self._lost.set_result(why)

    async def lost_for(self) -> str:
        """Why it must be replaced; answers only then."""
        assert self._llm.output_handler is not None
        await asyncio.wait({self._llm.output_handler, self._lost}, return_when=asyncio.FIRST_COMPLETED)
        return self._lost.result() if self._lost.done() else f"{WHO} {self._end()}"

    @asynccontextmanager
    async def guarded(self, what: str) -> AsyncIterator[None]:
        """A deadline around an engine call, and Tandem's exceptions out of it."""
        answered = self._answered
        try:
            async with deadline(self.timeout_s, f"engine {what}"):
                yield
        except EngineDeadError as problem:
            raise Unavailable("the engine is dead; this replica must be replaced") from problem
        except VLLMClientError as problem:
            raise UserError(f"the engine refuses the {what}: {problem}") from problem
        except VLLMError as problem:
            raise Unavailable(f"engine {what} failed: {problem.__cause__ or problem}") from problem
        except Unavailable:
            # Slow is no reason to be replaced; not one request answered in the whole time is.
            if answered == self._answered:
                self._silent()
            raise

    async def answers(self) -> bool:
        """Whether it says anything, be it between two steps of its."""
        try:
            async with deadline(self.timeout_s, "a sign of life"):
                await self._llm.list_loras()
        except EngineDeadError:
            return False
        except Unavailable:
            self._silent()
        return not self.hangs

    def _silent(self) -> None:
        self.lost(f"{WHO} answers nothing, not within {self.timeout_s:g} s")

    def _end(self) -> str:
        manager = self._llm.engine_core.resources.engine_manager
        for code in manager.finished_procs().values() if manager else ():
            return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return "failed"
