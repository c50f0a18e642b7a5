"""One episode: observe, generate, step, observe, ..., trajectory. What goes wrong ends it with a `StopReason`."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from typing import Protocol

from tandem.envs.protocol import Observation, StepResult
from tandem.model.chat import ChatFormat
from tandem.model.frames import Frame
from tandem.model.transcript import Transcript
from tandem.obs.instruments import ENV_TIME, GENERATE_TIME, TURN_TIME
from tandem.obs.metrics import timed
from tandem.obs.tracing import Span
from tandem.types import RolloutTask, StopReason, TandemError, Trajectory, Turn
from tandem_rollout.engine import Completion, ContextFull, Request
from tandem_rollout.environments import EnvFailed, Environments
from tandem_rollout.spans import EpisodeSpans


class Scene(Protocol):
    """Where it is played. `model` is the base model's name."""

    chat: ChatFormat
    envs: Environments
    model: str

    def frames(self, observation: Observation) -> tuple[Frame, ...]:
        """The observation's images. Raises EnvFailed where they are too many."""
        ...


class Episode:
    """One episode being played."""

    def __init__(
        self,
        scene: Scene,
        task: RolloutTask,
        seed: int,
        member: int,
        frames: dict[str, Frame],
        generate: Callable[[Request], Awaitable[Completion]],
    ) -> None:
        self.scene = scene
        self.task = task
        self.seed = seed
        self.member = member
        self.frames = frames  # of the whole group, by sha256
        self.generate = generate
        self.env = scene.envs.open(task.env)
        self.spans = EpisodeSpans(task, seed, member, scene.model)
        self.turns: list[Turn] = []
        self.tokens = 0
        self.last: StepResult | None = None

    async def play(self) -> Trajectory:
        """Play to the end."""
        try:
            with self.spans.reset(), timed(ENV_TIME, call="reset"):
                instruction, seen = await self.env.reset(self.seed)
            transcript = Transcript(self.scene.chat, instruction, self.task.context.window)
            self._observe(transcript, seen)
            while (stop := self._stop_reason()) is None:
                with self.spans.turn(len(self.turns)) as at, timed(TURN_TIME):
                    await self._turn(transcript, at)
        except EnvFailed as problem:
            return self.trajectory(StopReason.ENV_ERROR, str(problem))
        except ContextFull as problem:
            error = "" if self.turns else f"not even the first prompt fits: {problem}"
            return self.trajectory(StopReason.CONTEXT_LIMIT, error)
        except TandemError as problem:
            return self.trajectory(StopReason.ENGINE_ERROR, str(problem))
        return self.trajectory(stop)

    def trajectory(self, stop: StopReason, error: str = "") -> Trajectory:
        """What was played so far, as a trajectory that ended with `stop`."""
        return Trajectory(
            member=self.member,
            turns=tuple(self.turns),
            stop_reason=stop,
            task_reward=self.last.task_reward if self.last else 0.0,
            error=error,
            metrics=dict(self.last.info) if self.last else {},
        )

    def close(self) -> None:
        """Release the environment."""
        self.env.close()

    async def _turn(self, transcript: Transcript, at: Span) -> None:
        task, scene = self.task, self.scene
        prompt_ids, frames = transcript.prompt()
        seed = completion_seed(task.sampling_seed, self.seed, self.member, len(self.turns))
        request = Request(prompt_ids, frames, task.sampling, seed)
        with self.spans.completion(request) as asked, timed(GENERATE_TIME):
            completion = self.spans.tell_completion(asked, await self.generate(request))
        text = scene.chat.decode(completion.completion_ids)
        with self.spans.step(), timed(ENV_TIME, call="step"):
            result = await self.env.step(text)
        at.set({"rl.reward": result.reward, "rl.parsed": result.parsed})
        self.turns.append(_turn(completion, text, result, frames))
        self.tokens += len(completion.completion_ids)
        self.last = result
        transcript.answer(completion.completion_ids)
        self._observe(transcript, result.observation)

    def _observe(self, transcript: Transcript, observation: Observation) -> None:
        frames = self.scene.frames(observation)
        self.frames.update({frame.sha256: frame for frame in frames})
        transcript.observe(observation.text, frames)

    def _stop_reason(self) -> StopReason | None:
        if self.last is not None and self.last.terminated:
            return StopReason.TURN_LIMIT if self.last.info.get("out_of_turns") else StopReason.TERMINATED
        return StopReason.TURN_LIMIT if len(self.turns) >= self.task.max_turns else None


def _turn(completion: Completion, text: str, result: StepResult, frames: tuple[Frame, ...]) -> Turn:
    return Turn(
        prompt_ids=completion.prompt_ids,
        completion_ids=completion.completion_ids,
        rollout_logprobs=completion.logprobs,
        images=tuple(frame.sha256 for frame in frames),
        policy_version=completion.policy_version,
        text=text,
        feedback=result.feedback,
        reward=result.reward,
        finish=completion.finish,
        parsed=result.parsed,
    )


def completion_seed(sampling_seed: int, task_seed: int, member: int, turn: int) -> int:
    """The seed of one completion, in [0, 2**63): the same on every machine and in every process."""
    words = b"".join(number.to_bytes(8, "little") for number in (sampling_seed, task_seed, member, turn))
    return int.from_bytes(hashlib.blake2b(words, digest_size=8).digest(), "little") >> 1
