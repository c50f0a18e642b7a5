"""What supervised fine-tuning imitates: episodes of an environment's expert, or recorded ones.

    take(cursor) -> groups of one trajectory each, and the cursor of the next batch

A cursor says all there is to say: the same one gives the same episodes, so a resumed run goes on with the next. Prompts
are built by the code that the rollout builds them with, out of a real environment's observations; only the engine is
missing, whose part, the expansion of image placeholders, is `TokenGrid`'s.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import numpy as np

from tandem.config import Config
from tandem.envs import tasks
from tandem.envs.checks import blaming, checked_observation, checked_result
from tandem.envs.protocol import Env, StepResult
from tandem.envs.registry import get_spec
from tandem.model.chat import ChatFormat
from tandem.model.frames import Frame, FrameCache
from tandem.model.placeholders import TokenGrid
from tandem.model.transcript import Transcript
from tandem.obs import get_logger
from tandem.storage.episodes import read_groups
from tandem.types import FinishReason, StopReason, Trajectory, TrajectoryGroup, Turn, UserError

log = get_logger(__name__)


class Demonstrations(Protocol):
    """A source of episodes to imitate."""

    def take(self, cursor: int) -> tuple[list[TrajectoryGroup], int]:
        """The batch at a cursor (>= 0), and the next one's. Blocks while environments are played."""
        ...


def open_demonstrations(config: Config) -> Demonstrations:
    """The source that the config names.

    Raises:
        UserError: it has nothing that can be imitated. NotFound, DataCorrupt: recorded episodes cannot be read.
    """
    return Recorded(config) if config.sft.episodes else Expert(config)


class Expert:
    """Plays training tasks as a demonstrator of skill s: the expert's action with probability s, else any action."""

    def __init__(self, config: Config) -> None:
        spec = get_spec(config.env.id)
        if spec.expert is None:
            raise UserError(f"env.id {config.env.id}: has no expert; record episodes and name them in sft.episodes")
        if config.sft.skill < 1 and not spec.actions:
            raise UserError(f"sft.skill {config.sft.skill}: {config.env.id} lists no actions to err with; set it to 1")
        self.config = config
        self.spec, self.expert = spec, spec.expert
        self.chat = ChatFormat.load(config.model.path)
        self.grid = TokenGrid.load(config.model.path)
        self.frames = FrameCache()

    def take(self, cursor: int) -> tuple[list[TrajectoryGroup], int]:
        """Episodes of the next training seeds from `cursor` on."""
        seeds = tasks.seeds(self.config.env.id, "train", self.config.sft.batch, cursor)
        return [self.play(seed) for seed in seeds], seeds[-1] + 1

    def play(self, seed: int) -> TrajectoryGroup:
        """One episode. Its chances depend on run seed and task seed alone."""
        with blaming(self.config.env.id), closing(self.spec.make()) as env:
            return self._played(env, seed)

    def _played(self, env: Env, seed: int) -> TrajectoryGroup:
        config = self.config
        rng = np.random.default_rng((config.run.seed, seed))
        images: dict[str, bytes] = {}
        seen, turns, last = checked_observation(env.reset(seed)), list[Turn](), None
        transcript = Transcript(self.chat, env.instruction, config.env.window)
        while (stop := self._stop(turns, last)) is None:
            frames = tuple(map(self.frames.frame, seen.images))
            images |= {frame.sha256: frame.png for frame in frames}
            transcript.observe(seen.text, frames)
            prompt, shown = self._prompt(transcript)
            if len(prompt) + config.rollout.max_tokens > config.rollout.engine.max_model_len:
                stop = StopReason.CONTEXT_LIMIT
                break
            completion = self._answer(env, rng)
            last = checked_result(env.step(self.chat.decode(completion)))
            turns.append(_turn(prompt, completion, shown, self.chat.decode(completion), last))
            transcript.answer(completion)
            seen = last.observation
        if not turns:
            raise UserError(f"{config.env.id}: not even the first prompt fits rollout.engine.max_model_len; raise it")
        assert last is not None
        trajectory = Trajectory(0, tuple(turns), stop, last.task_reward, metrics=dict(last.info))
        named = {name: images[name] for turn in turns for name in turn.images}
        return TrajectoryGroup(f"t{seed}", config.env.id, seed, 0, (trajectory,), named)

    def _stop(self, turns: list[Turn], last: StepResult | None) -> StopReason | None:
        if last is not None and last.terminated:
            return StopReason.TURN_LIMIT if last.info.get("out_of_turns") else StopReason.TERMINATED
        return StopReason.TURN_LIMIT if len(turns) >= self.config.env.max_turns else None

    def _prompt(self, transcript: Transcript) -> tuple[tuple[int, ...], tuple[Frame, ...]]:
        """The next prompt as the engine would see it, and its images."""
        ids, frames = transcript.prompt()
        sizes = [(frame.pixels.shape[0], frame.pixels.shape[1]) for frame in frames]
        return self.grid.expand(ids, sizes, self.chat.image_id), frames

    def _answer(self, env: Env, rng: np.random.Generator) -> tuple[int, ...]:
        """Ids of what the demonstrator says, <|im_end|> included."""
        skilled = rng.random() < self.config.sft.skill
        text = self.expert(env) if skilled else self.spec.actions[rng.integers(len(self.spec.actions))]
        ids = (*self.chat.encode(text), self.chat.end_id)
        if len(ids) > (limit := self.config.rollout.max_tokens):
            raise UserError(f"rollout.max_tokens {limit}: the expert's {text!r} takes {len(ids)} tokens; raise it")
        return ids


class Recorded:
    """Recorded episodes of training tasks in a new random order every epoch; one that the machinery ended is left
    out, and whatever plays an evaluation's task."""

    def __init__(self, config: Config) -> None:
        folder, self.config = Path(config.sft.episodes), config
        chat = ChatFormat.load(config.model.path)
        self.episodes: list[TrajectoryGroup] = []
        of_evaluation = 0
        for group in read_groups(folder):
            if tasks.split_of(get_spec(group.env).task_digest(group.seed)) != "train":
                of_evaluation += 1
                continue
            for trajectory in group.valid_members:
                if trajectory.turns and (trajectory.solved or not config.sft.solved_only):
                    _check_tokenizer(trajectory, chat, f"sft.episodes {folder}: {group.group_id}")
                    self.episodes.append(_alone(group, trajectory))
        if of_evaluation:
            log.warning("%s: %d groups play evaluation tasks and are left out", folder, of_evaluation)
        if not self.episodes:
            hint = "; sft.solved_only=false takes the others too" if config.sft.solved_only else ""
            hint = "; record training tasks: tandem eval --suite train --save" if of_evaluation else hint
            raise UserError(f"sft.episodes {folder}: holds no episode to imitate{hint}")

    def take(self, cursor: int) -> tuple[list[TrajectoryGroup], int]:
        """The episodes number `cursor` and following of an endless sequence of epochs."""
        count = len(self.episodes)
        numbers = range(cursor, cursor + self.config.sft.batch)
        orders = {epoch: self._order(epoch) for epoch in range(numbers[0] // count, numbers[-1] // count + 1)}
        batch = [(number, self.episodes[orders[number // count][number % count]]) for number in numbers]
        # a batch larger than an epoch holds an episode twice: an id of their own tells the learner that this is meant
        return [replace(episode, group_id=f"{number}-{episode.group_id}") for number, episode in batch], numbers.stop

    def _order(self, epoch: int) -> list[int]:
        return np.random.default_rng((self.config.run.seed, epoch)).permutation(len(self.episodes)).tolist()


def _turn(
    prompt: tuple[int, ...], completion: tuple[int, ...], shown: tuple[Frame, ...], text: str, result: StepResult
) -> Turn:
    return Turn(
        prompt_ids=prompt,
        completion_ids=completion,
        rollout_logprobs=(0.0,) * len(completion),  # nobody sampled it: to imitate is to take it as certain
        images=tuple(frame.sha256 for frame in shown),
        policy_version=0,
        text=text,
        feedback=result.feedback,
        reward=result.reward,
        finish=FinishReason.STOP,
        parsed=result.parsed,
    )


def _alone(group: TrajectoryGroup, trajectory: Trajectory) -> TrajectoryGroup:
    """One member as a group of its own, of version 0: who played it does not matter."""
    turns = tuple(replace(turn, policy_version=0) for turn in trajectory.turns)
    images = {name: group.images[name] for turn in turns for name in turn.images}
    group_id = f"{group.group_id}-m{trajectory.member}"
    alone = replace(trajectory, member=0, turns=turns)
    return replace(group, group_id=group_id, policy_version=0, trajectories=(alone,), images=images)


def _check_tokenizer(trajectory: Trajectory, chat: ChatFormat, where: str) -> None:
    turn = trajectory.turns[0]
    if chat.decode(turn.completion_ids) != turn.text:
        raise UserError(f"{where}: was recorded with another tokenizer than model.path's; record with this model")
