"""An engine without a model: a rehearsal of everything around one.

It answers with an action of the environment, drawn by a hash of prompt, seed and adapter, after a time drawn by a hash
of the seed: the same run gives the same turns on every machine. Adapters are real: their files are read and hashed, and
the answers, and the probe, follow from what is in them. Logprobs are made up: finite, and what a learner accepts, so
that all of a run can be rehearsed. Nothing that is learned from them means anything.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from array import array
from collections.abc import Sequence
from contextlib import suppress
from statistics import NormalDist

from tandem.config import Config
from tandem.envs.registry import get_spec
from tandem.model.frames import Frame
from tandem.model.placeholders import TokenGrid
from tandem.obs import get_logger
from tandem.runtime import deadline
from tandem.types import FinishReason, Unavailable
from tandem_rollout.adapters import TENSORS
from tandem_rollout.base_model import BaseModel
from tandem_rollout.engine import Completion, ContextFull, LocalAdapter, Request

log = get_logger(__name__)
NO_ACTIONS = ("yes", "no")  # what is said where an environment does not list what may be


class EngineSimulated:
    """See `tandem_rollout.engine.Engine`. `kill` ends it as an engine's process ends."""

    has_sleep_mode = True

    def __init__(self, config: Config, base: BaseModel) -> None:
        """Raises UserError for an unknown environment, or a folder without image settings."""
        engine = config.rollout.engine
        self.policy_version = 0
        self._timeout_s, self._longest, self._times = engine.request_timeout_s, engine.max_model_len, engine.simulated
        self._seats = asyncio.Semaphore(engine.max_num_seqs)
        self._grid, self._image_id = TokenGrid.load(base.path), base.chat.image_id
        texts = get_spec(config.env.id).actions or NO_ACTIONS
        self._answers = tuple((*base.chat.encode(text), base.chat.end_id) for text in texts)
        self._weights = b""  # of what is served: their hash; the base model has none
        self._asleep = False
        self._dead = asyncio.Event()
        log.warning("a rehearsal: rollout.engine.kind is simulated, no model plays; what is learned means nothing")

    @property
    def healthy(self) -> bool:
        return not self._dead.is_set()

    def expand(self, prompt_ids: Sequence[int], frames: Sequence[Frame]) -> tuple[int, ...]:
        sizes = ((frame.pixels.shape[0], frame.pixels.shape[1]) for frame in frames)
        return self._grid.expand(prompt_ids, sizes, self._image_id)

    async def generate(self, request: Request) -> Completion:
        version, weights = self.policy_version, self._weights
        expanded = self.expand(request.prompt_ids, request.frames)
        most = request.sampling.max_tokens
        if len(expanded) + most > self._longest:
            raise ContextFull(
                f"prompt of {len(expanded)} ids and {most} new ones exceed rollout.engine.max_model_len {self._longest}"
            )
        self._check()
        async with deadline(self._timeout_s, "engine request"), self._seats:
            await self._live(self.seconds(request.seed))
        draw = _hash(weights, expanded, request.seed if request.sampling.temperature else 0)
        ids = self._answers[int.from_bytes(draw[:8], "little") % len(self._answers)][:most]
        finish = FinishReason.STOP if ids[-1] == self._answers[0][-1] else FinishReason.LENGTH
        logprobs = tuple(-0.05 - draw[8 + at % 24] / 256 for at in range(len(ids)))
        return Completion(expanded, ids, logprobs, finish, version)

    def seconds(self, seed: int) -> float:
        """How long a request of this seed takes: log-normal about the median."""
        if not self._times.turn_s:
            return 0.0
        share = (int.from_bytes(_hash(b"time", (), seed)[:8], "little") + 0.5) / 2**64
        return self._times.turn_s * math.exp(self._times.spread * NormalDist().inv_cdf(share))

    async def generate_together(self, requests: Sequence[Request]) -> list[Completion | BaseException]:
        return await asyncio.gather(*map(self.generate, requests), return_exceptions=True)

    async def forget(self) -> None:
        self._check()

    async def serve(self, adapter: LocalAdapter | None) -> float:
        self._check()
        weights = await asyncio.to_thread(_read, adapter) if adapter else b""
        self._check()
        self._weights, self.policy_version = weights, adapter.version if adapter else 0
        return -1 - int.from_bytes(_hash(weights, (), 0)[:4], "little") / 2**32

    async def sleep(self) -> bool:
        self._check()
        self._asleep = True
        return True

    async def wake(self) -> None:
        self._asleep = False
        self._check()

    async def answers(self) -> bool:
        return self.healthy

    async def died(self) -> str:
        await self._dead.wait()
        return "the simulated engine was ended"

    def kill(self) -> None:
        """What runs fails, and whatever is asked from now on."""
        self._dead.set()

    async def close(self) -> None:
        self.kill()

    async def _live(self, seconds: float) -> None:
        with suppress(Unavailable):
            async with deadline(seconds, "its end"):
                await self._dead.wait()
        self._check()

    def _check(self) -> None:
        if self._dead.is_set():
            raise Unavailable("the engine is dead; this replica must be replaced")
        if self._asleep:
            raise Unavailable("the engine sleeps; wake it first")


def _read(adapter: LocalAdapter) -> bytes:
    with open(adapter.folder / TENSORS, "rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def _hash(weights: bytes, ids: Sequence[int], seed: int) -> bytes:
    """32 bytes. `weights` has one length for all adapters, and ids are as long as what is left of it."""
    return hashlib.blake2b(weights + seed.to_bytes(8, "little") + array("I", ids).tobytes(), digest_size=32).digest()
