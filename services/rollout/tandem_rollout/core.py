"""Playing episodes: environment, prompt, engine, environment again, until the episode ends.

    group (one task seed)           +-- member 0: observe -> generate -> step -> observe -> ... -> trajectory
      all members from one start ---+-- member 1: ...                                            -> trajectory
                                    +-- ...                               all ended: the group is handed out

Nothing here knows vLLM, gRPC or Ray. What goes wrong inside one episode ends that episode with a
`StopReason`; the group goes on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

from tandem.config.section import LEAST_TEMPERATURE, MOST_TEMPERATURE
from tandem.envs.protocol import Observation
from tandem.envs.registry import get_spec
from tandem.model.chat import ChatFormat
from tandem.model.frames import Frame, FrameCache
from tandem.runtime import deadline, together
from tandem.types import (
    RolloutTask,
    StopReason,
    Trajectory,
    TrajectoryGroup,
    Unavailable,
    UserError,
)
from tandem_rollout import spans
from tandem_rollout.engine import Engine
from tandem_rollout.environments import EnvFailed, Environments
from tandem_rollout.episode import Episode
from tandem_rollout.measured import recorded
from tandem_rollout.rounds import Continuous, Pace, Rounds

MOST_EPISODES = 100_000  # of one request


@dataclass(frozen=True, slots=True)
class Limits:
    """What one replica allows."""

    max_concurrent_episodes: int
    episode_timeout_s: float
    max_images: int  # per prompt
    images_per_turn: int = 1
    deterministic: bool = False  # what is played is a function of the task and the policy, whatever the timing


@dataclass(frozen=True, slots=True)
class Played:
    """What has been played since the start."""

    running: int = 0
    episodes: int = 0
    turns: int = 0
    tokens: int = 0


class Player:
    """Plays groups of episodes against one engine."""

    def __init__(
        self, engine: Engine, chat: ChatFormat, envs: Environments, limits: Limits, model: str = "base"
    ) -> None:
        """`model` is the base model's name, for traces."""
        self.engine, self.model = engine, model
        self.chat = chat
        self.envs = envs
        self.limits = limits
        self.played = Played()
        self._continuous = Continuous(engine, limits.max_concurrent_episodes)
        self._lock = asyncio.Lock()
        self._frames = FrameCache()

    async def play(self, task: RolloutTask) -> AsyncGenerator[TrajectoryGroup]:
        """Each group as soon as all its members have ended, in any order.

        Raises:
            UserError: the task asks for what cannot be played here.
        """
        await asyncio.to_thread(get_spec, task.env)  # UserError for an unknown environment; it may import a lot
        self._check(task)
        async with self._as_if_first():
            for seeds, pace in self._waves(task):
                plays = [self._play_group(task, seed, pace, i * task.group_size) for i, seed in enumerate(seeds)]
                groups = [asyncio.ensure_future(play) for play in plays]
                try:
                    for group in asyncio.as_completed(groups):
                        yield await group
                finally:  # the caller went away, or one group failed: end the others
                    for group in groups:
                        group.cancel()
                    await asyncio.gather(*groups, return_exceptions=True)
                    await pace.close()

    @asynccontextmanager
    async def _as_if_first(self) -> AsyncIterator[None]:
        """Where play is deterministic: nothing else is played, and nothing is left of what was."""
        if not self.limits.deterministic:
            yield
            return
        async with self._lock:
            await self.engine.forget()
            yield

    def _waves(self, task: RolloutTask) -> Iterator[tuple[Sequence[int], Pace]]:
        """Seeds to play together, all of them where seats are taken as they become free."""
        if not self.limits.deterministic:
            yield task.seeds, self._continuous
            return
        at_once = self.limits.max_concurrent_episodes // task.group_size
        for start in range(0, len(task.seeds), at_once):
            seeds = task.seeds[start : start + at_once]
            yield seeds, Rounds(self.engine, len(seeds) * task.group_size)

    async def close(self) -> None:
        """Let the environments go."""
        await self.envs.close()

    def _check(self, task: RolloutTask) -> None:
        if self.limits.deterministic and task.group_size > self.limits.max_concurrent_episodes:
            raise UserError(
                f"run.deterministic plays whole groups at once: raise rollout.max_concurrent_episodes, now "
                f"{self.limits.max_concurrent_episodes}, to the group size {task.group_size} or more"
            )
        if not task.seeds or task.group_size < 1 or task.max_turns < 1:
            raise UserError("a rollout needs at least one seed, one trajectory per group and one turn")
        if len(task.seeds) * task.group_size > MOST_EPISODES:
            raise UserError(f"{len(task.seeds)} groups of {task.group_size} are more than {MOST_EPISODES} episodes")
        if task.sampling.temperature and not LEAST_TEMPERATURE <= task.sampling.temperature <= MOST_TEMPERATURE:
            raise UserError(
                f"temperature {task.sampling.temperature} must be 0 (greedy), or {LEAST_TEMPERATURE:g} "
                f"to {MOST_TEMPERATURE:g}"
            )
        if len(set(task.seeds)) < len(task.seeds):
            raise UserError("a rollout's seeds must differ: ask for a larger group_size to play one task more often")
        images = min(task.context.window or task.max_turns, task.max_turns) * self.limits.images_per_turn
        if images > self.limits.max_images:
            raise UserError(
                f"a prompt may hold {images} images, this replica allows {self.limits.max_images}; "
                "raise env.max_turns or env.window in its recipe"
            )

    async def _play_group(self, task: RolloutTask, seed: int, pace: Pace, place: int) -> TrajectoryGroup:
        """`place` is the first member's in the pace's order."""
        frames: dict[str, Frame] = {}
        started = time.perf_counter()
        episodes = [
            partial(Episode, self, task, seed, member, frames, partial(pace.generate, place + member))
            for member in range(task.group_size)
        ]
        with spans.of_group(task, seed) as at:
            members = await together(*(self._play_member(begin, pace) for begin in episodes))
            named = {name for member in members for turn in member.turns for name in turn.images}
            group = TrajectoryGroup(
                group_id=f"v{task.policy_version}-s{task.sampling_seed}-t{seed}",
                env=task.env,
                seed=seed,
                policy_version=task.policy_version,
                trajectories=tuple(members),
                images={name: frames[name].png for name in sorted(named)},
                seconds=time.perf_counter() - started,
            )
            return spans.tell_group(at, group)

    async def _play_member(self, begin: Callable[[], Episode], pace: Pace) -> Trajectory:
        async with pace.seat():
            self._count(running=1)
            episode, began = begin(), time.perf_counter()
            try:
                with episode.spans.episode() as at:
                    played = episode.spans.tell(at, await self._to_its_end(episode))
                    return recorded(played, time.perf_counter() - began)
            finally:
                episode.close()
                self._count(running=-1, episodes=1, turns=len(episode.turns), tokens=episode.tokens)

    async def _to_its_end(self, episode: Episode) -> Trajectory:
        try:
            async with deadline(self.limits.episode_timeout_s, "episode"):
                return await episode.play()
        except Unavailable as problem:  # only the deadline's: the engine's end inside
            return episode.trajectory(StopReason.DEADLINE, str(problem))

    def frames(self, observation: Observation) -> tuple[Frame, ...]:
        """The observation's images. Raises EnvFailed where they are too many."""
        if len(observation.images) > self.limits.images_per_turn:
            raise EnvFailed(
                f"an observation of {len(observation.images)} images; env.images_per_turn is "
                f"{self.limits.images_per_turn}"
            )
        return tuple(map(self._frames.frame, observation.images))

    def _count(self, running: int = 0, episodes: int = 0, turns: int = 0, tokens: int = 0) -> None:
        was = self.played
        self.played = Played(was.running + running, was.episodes + episodes, was.turns + turns, was.tokens + tokens)
