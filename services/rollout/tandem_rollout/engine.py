"""What the core asks of an inference engine. `engine_vllm` is the real one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tandem.model.frames import Frame
from tandem.types import FinishReason, Sampling, TandemError


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """What to complete: a prompt that holds one placeholder per frame. `seed` fixes the draw."""

    prompt_ids: Sequence[int]
    frames: Sequence[Frame]
    sampling: Sampling
    seed: int


@dataclass(frozen=True, slots=True)
class Completion:
    """What the engine made of one prompt.

    `prompt_ids` are the ids as the engine saw them, image placeholders expanded. `logprobs[i]` (nats) is the
    processed logprob of `completion_ids[i]`. `policy_version` is the one all of it was drawn from.
    """

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: FinishReason
    policy_version: int


@dataclass(frozen=True, slots=True)
class LocalAdapter:
    """A verified adapter folder on this machine. Name and folder are this version's alone: engines cache by
    both.

    `largest_b` is the largest |entry| of each B matrix, by tensor name: all 0 is the base model's policy.
    """

    version: int
    name: str
    folder: Path
    sha256: str  # of its manifest
    largest_b: Mapping[str, float]


class ContextFull(TandemError):
    """Prompt and completion together do not fit the engine's context."""


class Engine(Protocol):
    """One engine serving one policy version at a time. Every coroutine raises Unavailable where the engine is
    dead or does not answer in time."""

    @property
    def healthy(self) -> bool:
        """False once the engine died or hangs: the replica must be replaced."""
        ...

    @property
    def policy_version(self) -> int:
        """The version that requests are answered with; 0 is the base model without an adapter."""
        ...

    @property
    def has_sleep_mode(self) -> bool:
        """Whether `sleep` frees anything (not on CPU)."""
        ...

    def expand(self, prompt_ids: Sequence[int], frames: Sequence[Frame]) -> tuple[int, ...]:
        """The prompt as the engine will see it: each placeholder repeated as often as its image needs.

        Raises:
            ValueError: as many placeholders as frames there must be.
        """
        ...

    async def generate(self, request: Request) -> Completion:
        """Complete a prompt.

        Raises:
            ContextFull: prompt and `max_tokens` exceed the context.
            ValueError: as `expand`.
        """
        ...

    async def generate_together(self, requests: Sequence[Request]) -> list[Completion | BaseException]:
        """Complete prompts that the engine starts on at one moment, in the order given, with nothing else running:
        the batches it computes depend on the requests alone. What `generate` would raise is in its request's place."""
        ...

    async def forget(self) -> None:
        """Drop what earlier requests left in caches; none may be running."""
        ...

    async def serve(self, adapter: LocalAdapter | None) -> float:
        """Serve this adapter (None: the base model) from now on; returns the probe's logprob under it (nats).

        New requests go to it once the probe has shown that it acts; the old adapter is let go once the
        requests running on it have ended. On any error the engine still serves what it did before.

        Raises:
            DataCorrupt: the adapter loads but does not act as it should.
            UserError: the engine refuses the adapter.
        """
        ...

    async def sleep(self) -> bool:
        """Free device memory; returns `has_sleep_mode`."""
        ...

    async def wake(self) -> None:
        """Take device memory back."""
        ...

    async def answers(self) -> bool:
        """Whether it answers at all, within a request's time; one that does not is unhealthy from then on."""
        ...

    async def died(self) -> str:
        """Return once `healthy` is False: why."""
        ...

    async def close(self) -> None:
        """Stop the engine."""
        ...
