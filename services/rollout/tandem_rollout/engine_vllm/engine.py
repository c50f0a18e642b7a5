"""vLLM as the engine: requests, adapters by version, sleep."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

from vllm import SamplingParams
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.lora.request import LoRARequest
from vllm.platforms import current_platform
from vllm.v1.engine.async_llm import AsyncLLM

from tandem.config import Config
from tandem.model.chat import ChatFormat
from tandem.model.frames import Frame
from tandem.obs import get_logger, span
from tandem.runtime import deadline
from tandem.types import FinishReason, Unavailable, UserError
from tandem_rollout.base_model import BaseModel
from tandem_rollout.engine import Completion, ContextFull, LocalAdapter, Request
from tandem_rollout.engine_vllm import probe
from tandem_rollout.engine_vllm.prompts import PromptBuilder
from tandem_rollout.engine_vllm.pulse import Pulse
from tandem_rollout.engine_vllm.settings import engine_args, sampling_params
from tandem_rollout.engine_vllm.stats import Stats

log = get_logger(__name__)
_FINISH = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}


class _Served:
    """A policy version in the engine, and how many requests are running on it. `policy` is what its probe has shown."""

    policy: probe.Policy

    def __init__(self, version: int, lora: LoRARequest | None) -> None:
        self.version = version
        self.lora = lora
        self.running = 0
        self.idle = asyncio.Event()
        self.idle.set()

    def __enter__(self) -> _Served:
        self.running += 1
        self.idle.clear()
        return self

    def __exit__(self, *_: object) -> None:
        self.running -= 1
        if self.running == 0:
            self.idle.set()


class _Llm(AsyncLLM):
    """Tells who waits for it, by request id, when a request has reached the engine's queue."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.queued: dict[str, asyncio.Future[None]] = {}

    async def add_request(self, request_id: str, *args: Any, **kwargs: Any) -> Any:
        collector = await super().add_request(request_id, *args, **kwargs)
        if waiting := self.queued.pop(request_id, None):
            waiting.set_result(None)
        return collector

    def __del__(self) -> None:
        """`EngineVllm.close` ends it; at interpreter exit vLLM's own method would fail."""


class EngineVllm:
    """See `tandem_rollout.engine.Engine`. Build it inside a running event loop with `start`."""

    _base: probe.Policy

    def __init__(self, llm: _Llm, chat: ChatFormat, config: Config) -> None:
        self.llm, self.chat = llm, chat
        self.model, settings = config.model, config.rollout.engine
        self.max_model_len = settings.max_model_len
        self.pulse = Pulse(llm, settings.request_timeout_s)
        self._has_sleep_mode = not current_platform.is_cpu()
        self.prompts = PromptBuilder(llm, chat)
        self._serving = _Served(0, None)
        self._numbers = itertools.count(1)  # of adapters
        self._names = map(str, itertools.count(1))  # of requests

    @staticmethod
    async def start(config: Config, base: BaseModel, seed: int) -> EngineVllm:
        """Start vLLM on the base model and answer a first request.

        Raises:
            UserError: vLLM refuses the configuration or cannot load the model.
        """
        args = engine_args(config, base, seed)
        try:
            llm: Any = _Llm.from_engine_args(
                AsyncEngineArgs(**args), stat_loggers=[Stats] if config.obs.measured else None
            )
        except (ValueError, RuntimeError, OSError) as problem:
            reason = " ".join(str(problem).split())[:500]
            raise UserError(f"vLLM did not start on {config.model.path}: {reason}") from problem
        engine = EngineVllm(llm, base.chat, config)
        engine._serving.policy = engine._base = await engine._probed(engine._serving, None)
        return engine

    @property
    def healthy(self) -> bool:
        return not (self.llm.errored or self.pulse.hangs)

    @property
    def policy_version(self) -> int:
        return self._serving.version

    @property
    def has_sleep_mode(self) -> bool:
        return self._has_sleep_mode

    def expand(self, prompt_ids: Sequence[int], frames: Sequence[Frame]) -> tuple[int, ...]:
        return self.prompts.expand(prompt_ids, frames)

    async def generate(self, request: Request) -> Completion:
        return await self._complete(request, next(self._names))

    async def generate_together(self, requests: Sequence[Request]) -> list[Completion | BaseException]:
        answers: list[asyncio.Task[Completion]] = []
        try:
            async with self._paused(clear_cache=False):
                for request in requests:
                    await self._queue(request, answers)
            return await asyncio.gather(*answers, return_exceptions=True)
        finally:
            for answer in answers:  # where all have ended this does nothing
                answer.cancel()
            await asyncio.gather(*answers, return_exceptions=True)

    async def forget(self) -> None:
        async with self._paused(clear_cache=True):
            pass

    @asynccontextmanager
    async def _paused(self, *, clear_cache: bool) -> AsyncIterator[None]:
        """Nothing is computed meanwhile; whatever happens, it goes on afterwards."""
        try:
            async with self.pulse.guarded("pause"):
                await self.llm.pause_generation(mode="keep", clear_cache=clear_cache)
            yield
        finally:
            async with self.pulse.guarded("resume"):
                await self.llm.resume_generation()

    async def _queue(self, request: Request, answers: list[asyncio.Task[Completion]]) -> None:
        """Start a request and wait until it is in the engine's queue, or has failed."""
        name = next(self._names)
        queued = self.llm.queued[name] = asyncio.get_running_loop().create_future()
        answers.append(asyncio.ensure_future(self._complete(request, name)))
        try:
            await asyncio.wait({answers[-1], queued}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.llm.queued.pop(name, None)

    async def _complete(self, request: Request, name: str) -> Completion:
        served, sampling = self._serving, request.sampling
        expanded = self.prompts.expand(request.prompt_ids, request.frames)
        if len(expanded) + sampling.max_tokens > self.max_model_len:
            raise ContextFull(
                f"prompt of {len(expanded)} ids and {sampling.max_tokens} new ones exceed "
                f"rollout.engine.max_model_len {self.max_model_len}"
            )
        params = sampling_params(sampling, request.seed, self.chat.end_id)
        output = await self._run(served, name, request.prompt_ids, request.frames, params)
        if tuple(output.prompt_token_ids) != expanded:
            raise Unavailable("the engine saw other prompt ids than were sent: it expands images differently")
        made = output.outputs[0]
        if made.finish_reason not in _FINISH:
            raise Unavailable(f"the engine ended the request with {made.finish_reason!r}")
        return Completion(
            prompt_ids=expanded,
            completion_ids=tuple(made.token_ids),
            logprobs=tuple(made.logprobs.logprobs),
            finish=_FINISH[made.finish_reason],
            policy_version=served.version,
        )

    async def serve(self, adapter: LocalAdapter | None) -> float:
        if adapter is None:
            new = _Served(0, None)
        else:
            new = _Served(adapter.version, LoRARequest(adapter.name, next(self._numbers), str(adapter.folder)))
            await self._add(new)
        try:
            new.policy = await self._probed(new, adapter)
            probe.check_acts(new.policy, (self._base, self._serving.policy), self.model.dtype)
        except BaseException:
            await self._remove(new)
            raise
        old, self._serving = self._serving, new
        try:
            async with deadline(2 * self.pulse.timeout_s, "draining the old adapter's requests"):
                await old.idle.wait()
            await self._remove(old)
        except Unavailable as problem:  # the new one is served: what is left of the old one is a question of health
            log.error("version %d could not be let go: %s", old.version, problem)
            self.pulse.lost(str(problem))
        return sum(new.policy.logprobs)

    async def sleep(self) -> bool:
        if self._has_sleep_mode:
            async with self.pulse.guarded("sleep"):
                await self.llm.sleep(level=1)
        return self._has_sleep_mode

    async def wake(self) -> None:
        if self._has_sleep_mode:
            async with self.pulse.guarded("wake"):
                await self.llm.wake_up()

    async def answers(self) -> bool:
        return await self.pulse.answers()

    async def died(self) -> str:
        return await self.pulse.lost_for()

    async def close(self) -> None:
        handler, llm = self.llm.output_handler, self.llm
        if handler is not None:  # else it logs the engine's end as a failure
            handler.cancel()
            await asyncio.wait({handler})
        await asyncio.to_thread(llm.shutdown)

    async def _run(
        self, served: _Served, name: str, prompt_ids: Sequence[int], frames: Sequence[Frame], params: SamplingParams
    ) -> Any:
        """The finished vLLM RequestOutput of one request."""
        with served:
            async with self.pulse.guarded("request"):
                prompt = self.prompts.build(prompt_ids, frames)
                stream = self.llm.generate(prompt, params, name, lora_request=served.lora)
                outputs = [output async for output in stream]  # FINAL_ONLY: one
        if not outputs:
            raise Unavailable("the engine ended the request without an answer")
        self.pulse.answered()
        return outputs[-1]

    async def _add(self, new: _Served) -> None:
        assert new.lora is not None
        async with self.pulse.guarded("adapter load"):
            problem = await _outcome(self.llm.add_lora(new.lora))
            if type(problem) is Exception:  # vLLM's bare wrapping of what its process raised
                reason = f"the engine refuses adapter {new.lora.lora_name}: {problem}"
                raise UserError(reason) from problem
            if problem is not None:
                raise problem

    async def _remove(self, old: _Served) -> None:
        if old.lora is not None and not self.llm.errored:
            async with self.pulse.guarded("adapter removal"):
                await self.llm.remove_lora(old.lora.lora_int_id)

    async def _probed(self, new: _Served, adapter: LocalAdapter | None) -> probe.Policy:
        """Probe twice. Raises DataCorrupt as `probe.check_repeats`."""
        name, largest_b = (adapter.name, adapter.largest_b) if adapter else ("the base model", {})
        with span("probe", {"rl.policy_version": new.version}):
            policy = probe.Policy(name, largest_b, await self._probe(new))
            probe.check_repeats(policy, await self._probe(new), self.model.probe_tolerance)
        return policy

    async def _probe(self, served: _Served) -> tuple[float, ...]:
        """The logprobs (nats) of the probe's completion."""
        prompt, answer = probe.prompt(self.chat)
        output = await self._run(served, next(self._names), prompt + answer, [probe.frame()], probe.params())
        positions = zip(output.prompt_logprobs[-len(answer) :], answer, strict=True)
        return tuple(float(position[token].logprob) for position, token in positions)


async def _outcome(call: Coroutine[Any, Any, Any]) -> BaseException | None:
    """What a call raised."""
    task = asyncio.ensure_future(call)
    try:
        await asyncio.wait({task})
    finally:
        task.cancel()
    return task.exception()
