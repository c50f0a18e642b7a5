"""What the core does with an engine and an environment: prompts, stop reasons, groups, limits."""

from __future__ import annotations

import asyncio
import hashlib
import io
import itertools
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rollout_stub_engine import StubEngine

from tandem import envs
from tandem.envs import Observation, StepResult
from tandem.envs.protocol import Env
from tandem.model.chat import ChatFormat
from tandem.model.frames import FrameCache
from tandem.types import (
    ContextPolicy,
    FinishReason,
    RolloutTask,
    Sampling,
    StopReason,
    TrajectoryGroup,
    UserError,
)
from tandem_rollout.core import Limits, Player
from tandem_rollout.environments import EnvThreads
from tandem_rollout.episode import completion_seed

SEED = envs.seeds("maze2d:tiny", "train", 1)[0]
TASK = RolloutTask(
    env="maze2d:tiny",
    seeds=(SEED,),
    group_size=2,
    policy_version=0,
    sampling=Sampling(max_tokens=8),
    context=ContextPolicy(0),
    max_turns=14,
    sampling_seed=5,
)
LIMITS = Limits(max_concurrent_episodes=64, episode_timeout_s=30, max_images=14)


@pytest.fixture(scope="module")
def chat(model_dir: Path) -> ChatFormat:
    return ChatFormat.load(model_dir)


class Broken:
    """Maze2D that raises where it is told to."""

    def __init__(self, where: str) -> None:
        self.inner = envs.make("maze2d:tiny")
        self.instruction = self.inner.instruction
        self.where = where

    def reset(self, seed: int) -> Observation:
        if self.where == "reset":
            raise OSError("no display")
        seen = self.inner.reset(seed)
        return replace(seen, images=(np.zeros((4, 4), dtype=np.float32),)) if self.where == "image" else seen  # type: ignore[arg-type]

    def step(self, completion_text: str) -> StepResult:
        if self.where == "step":
            raise ZeroDivisionError("physics")
        return self.inner.step(completion_text)

    def close(self) -> None:
        self.inner.close()


def player_of(engine: StubEngine, limits: Limits = LIMITS, make: Callable[[str], Env] = envs.make) -> Player:
    return Player(engine, engine.chat, EnvThreads(make, step_timeout_s=20), limits)


async def play(player: Player, task: RolloutTask = TASK) -> list[TrajectoryGroup]:
    return [group async for group in player.play(task)]


async def only(player: Player, task: RolloutTask = TASK) -> TrajectoryGroup:
    (group,) = await play(player, task)
    return group


def oracle(seed: int) -> list[str]:
    """Completions that solve a maze, found by trying: breadth first over action sequences' end images."""
    queue: list[list[int]] = [[]]
    seen: set[bytes] = set()
    while True:
        path = queue.pop(0)
        env = envs.make("maze2d:tiny")
        (image,) = env.reset(seed).images
        for action in path:
            result = env.step(f"('move', {action})")
            (image,) = result.observation.images
            if result.task_reward == 1.0:
                return [f"('move', {a})" for a in path]
        if image.tobytes() not in seen:
            seen.add(image.tobytes())
            queue += [[*path, action] for action in range(4)]


async def test_solved_episode(chat: ChatFormat) -> None:
    path = oracle(SEED)
    engine = StubEngine(chat, answer=lambda number: path[number])
    group = await only(player_of(engine), replace(TASK, group_size=1))
    (trajectory,) = group.trajectories
    assert trajectory.stop_reason is StopReason.TERMINATED
    assert trajectory.solved and trajectory.total_return == 1.0 and trajectory.error == ""
    assert [turn.text for turn in trajectory.turns] == path
    assert [turn.reward for turn in trajectory.turns] == [0.0] * (len(path) - 1) + [1.0]
    assert trajectory.metrics["shortest"] == len(path) == trajectory.metrics["moves"]
    assert all(turn.parsed and turn.finish is FinishReason.STOP for turn in trajectory.turns)


async def test_environment_and_task_turn_limits(chat: ChatFormat) -> None:
    for limit in (14, 3):  # the maze's own limit is 14
        group = await only(player_of(StubEngine(chat, answer=lambda number: "what?")), replace(TASK, max_turns=limit))
        for trajectory in group.trajectories:
            assert trajectory.stop_reason is StopReason.TURN_LIMIT and not trajectory.solved
            assert len(trajectory.turns) == limit
            assert not any(turn.parsed for turn in trajectory.turns)
            assert {turn.feedback for turn in trajectory.turns} == {"Not understood."}


@pytest.mark.parametrize(("where", "message"), [("reset", "no display"), ("step", "physics"), ("image", "uint8")])
async def test_environment_failure_is_data(chat: ChatFormat, where: str, message: str) -> None:
    group = await only(player_of(StubEngine(chat), make=lambda env_id: Broken(where)))
    for trajectory in group.trajectories:
        assert trajectory.stop_reason is StopReason.ENV_ERROR and trajectory.stop_reason.failed
        assert message in trajectory.error and trajectory.turns == ()


async def test_engine_failure_ends_one_member_only(chat: ChatFormat) -> None:
    engine = StubEngine(chat, answer=lambda number: "?", fail_at=3)  # not the first request of either
    group = await only(player_of(engine))
    failed, whole = sorted(group.trajectories, key=lambda t: t.stop_reason)
    assert (failed.stop_reason, failed.error) == (StopReason.ENGINE_ERROR, "engine gone")
    assert (whole.stop_reason, whole.error, len(whole.turns)) == (StopReason.TURN_LIMIT, "", 14)
    assert len(failed.turns) < 4  # what was played is kept, no more


async def test_episode_deadline(chat: ChatFormat) -> None:
    engine = StubEngine(chat, answer=lambda number: "?", hang_at=2)
    player = player_of(engine, replace(LIMITS, episode_timeout_s=0.5))
    group = await only(player, replace(TASK, group_size=1))
    (trajectory,) = group.trajectories
    assert trajectory.stop_reason is StopReason.DEADLINE and "0.5 s" in trajectory.error
    assert len(trajectory.turns) == 2  # what was played is kept
    assert player.played.running == 0 and engine.running == 0


async def test_context_limit_keeps_what_was_played(chat: ChatFormat) -> None:
    whole = await only(player_of(StubEngine(chat, answer=lambda number: "?")), replace(TASK, group_size=1))
    room = len(whole.trajectories[0].turns[4].prompt_ids) + TASK.sampling.max_tokens
    engine = StubEngine(chat, answer=lambda number: "?", max_model_len=room)
    (trajectory,) = (await only(player_of(engine), replace(TASK, group_size=1))).trajectories
    assert trajectory.stop_reason is StopReason.CONTEXT_LIMIT and not trajectory.stop_reason.failed
    assert len(trajectory.turns) == 5


async def test_a_first_prompt_that_does_not_fit_ends_that_episode_alone(chat: ChatFormat) -> None:
    """One task with too long a text costs its own group, not the others of the call."""
    texts = {SEED: "long " * 500, SEED + 1: "short"}

    class Wordy(Broken):
        def reset(self, seed: int) -> Observation:
            return replace(self.inner.reset(seed), text=texts[seed])

    engine = StubEngine(chat, answer=lambda number: "?", max_model_len=400)
    player = player_of(engine, make=lambda env_id: Wordy("nowhere"))
    groups = await play(player, replace(TASK, seeds=(SEED, SEED + 1), max_turns=2, context=ContextPolicy(1)))
    long, short = sorted(groups, key=lambda group: group.seed)
    for trajectory in long.trajectories:
        assert trajectory.stop_reason is StopReason.CONTEXT_LIMIT and not trajectory.solved and trajectory.turns == ()
        assert "not even the first prompt fits: " in trajectory.error
    assert [len(trajectory.turns) for trajectory in short.trajectories] == [2, 2]
    assert engine.running == 0


@pytest.mark.parametrize("cut", [False, True])
async def test_whole_transcript_is_concatenation(chat: ChatFormat, cut: bool) -> None:
    """Every prompt is the one before, its completion, the closing, and the next user turn: nothing else."""
    engine = StubEngine(chat, answer=lambda number: ["('move', 2)", "nonsense", "('move', 0)"][number % 3], cut=cut)
    group = await only(player_of(engine), replace(TASK, group_size=1))
    turns = group.trajectories[0].turns
    assert len({turn.feedback for turn in turns}) >= 2
    for before, after in itertools.pairwise(turns):
        start = before.prompt_ids + before.completion_ids
        assert after.prompt_ids[: len(start)] == start
        added = after.prompt_ids[len(start) :]
        assert (added[0] == chat.end_id) is cut  # a completion that was cut off is closed in the prompt
        picture = f"<|vision_start|>{'<|image_pad|>' * 3}<|vision_end|>"
        user = f"<|im_start|>user\n{before.feedback}{picture}<|im_end|>\n"
        closing = ("<|im_end|>" if cut else "") + "\n"
        assert added == tuple(chat.encode(closing + user + "<|im_start|>assistant\n"))
        assert after.images[:-1] == before.images


@pytest.mark.parametrize("window", [1, 2, 3])
async def test_window_of_turns(chat: ChatFormat, window: int) -> None:
    engine = StubEngine(chat, answer=lambda number: "('move', 3)" if number % 2 else "?")
    await only(player_of(engine), replace(TASK, group_size=1, context=ContextPolicy(window)))
    whole = StubEngine(chat, answer=engine.answer)
    group = await only(player_of(whole), replace(TASK, group_size=1))
    turns = group.trajectories[0].turns
    for number, request in enumerate(engine.requests):
        first = max(0, number + 1 - window)
        assert request.prompt_ids.count(chat.image_id) == len(request.frames) == number + 1 - first
        assert [f.sha256 for f in request.frames] == list(turns[-1].images[first : number + 1])
        text = chat.tokenizer.decode(list(request.prompt_ids), skip_special_tokens=False)
        assert text.startswith("<|im_start|>user\nReach the red square.")  # the instruction never falls out
        assert text.count("<|im_start|>assistant") == number + 1 - first
        feedback = [turn.feedback for turn in turns[:number]][max(0, first - 1) :]
        assert all(words in text for words in feedback)


async def test_group_members_share_the_start_and_nothing_else(chat: ChatFormat) -> None:
    engine = StubEngine(chat)
    task = replace(TASK, group_size=4, seeds=(SEED, SEED + 1), context=ContextPolicy(1))
    groups = await play(player_of(engine), task)
    assert {group.seed for group in groups} == {SEED, SEED + 1}
    assert len({group.group_id for group in groups}) == 2
    for group in groups:
        assert [t.member for t in group.trajectories] == [0, 1, 2, 3]
        assert len({t.turns[0].images for t in group.trajectories}) == 1
        env = envs.make("maze2d:tiny")
        (image,) = env.reset(group.seed).images
        png = group.images[group.trajectories[0].turns[0].images[0]]
        assert np.array_equal(np.asarray(Image.open(io.BytesIO(png))), image)
        assert {hashlib.sha256(data).hexdigest() for data in group.images.values()} == set(group.images)
        assert {n for t in group.trajectories for turn in t.turns for n in turn.images} == set(group.images)
    seeds = [request.seed for request in engine.requests]
    assert len(set(seeds)) == len(seeds) == sum(len(t.turns) for g in groups for t in g.trajectories)


def test_completion_seed_is_the_same_everywhere() -> None:
    """Golden number, from `hashlib.blake2b(struct.pack('<4Q', ...), digest_size=8)` halved."""
    assert completion_seed(5, 7, 0, 0) == 679238951298531793
    assert completion_seed(5, 7, 0, 1) != completion_seed(5, 7, 1, 0)
    assert 0 <= completion_seed(2**64 - 1, 2**64 - 1, 7, 13) < 2**63


async def test_groups_stream_as_they_end_and_seats_are_limited(chat: ChatFormat) -> None:
    engine = StubEngine(chat, answer=lambda number: "?")
    player = player_of(engine, replace(LIMITS, max_concurrent_episodes=2))
    arrived: list[int] = []
    async for group in player.play(replace(TASK, seeds=tuple(range(4)), max_turns=2)):
        arrived.append(group.seed)
        if len(arrived) == 1:
            assert len(engine.requests) < 16  # the others are not done yet
    assert sorted(arrived) == [0, 1, 2, 3]
    assert engine.most_running == 2
    assert (player.played.episodes, player.played.turns, player.played.running) == (8, 16, 0)
    assert player.played.tokens == 16 * len([*chat.encode("?"), chat.end_id])


async def test_leaving_the_stream_ends_its_episodes(chat: ChatFormat) -> None:
    engine = StubEngine(chat, hold=asyncio.Event())
    player = player_of(engine)
    stream: AsyncGenerator[TrajectoryGroup] = player.play(replace(TASK, seeds=(1, 2, 3)))
    waiting = asyncio.ensure_future(anext(stream))
    await engine.until_running(6)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await stream.aclose()
    assert engine.running == 0 and player.played.running == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"env": "maze2d:nope"}, "known: maze2d"),
        ({"seeds": ()}, "at least one seed"),
        ({"group_size": 0}, "one trajectory"),
        ({"max_turns": 0}, "one turn"),
        ({"seeds": (1, 1)}, "must differ"),
        ({"sampling": Sampling(temperature=2.5)}, "temperature 2.5 must be 0"),
        ({"sampling": Sampling(temperature=0.001)}, "temperature 0.001 must be 0"),
        ({"sampling": Sampling(temperature=float("nan"))}, "temperature nan must be 0"),
        ({"max_turns": 15}, "15 images"),
        ({"context": ContextPolicy(20), "max_turns": 20}, "20 images"),
    ],
)
async def test_refused_tasks(chat: ChatFormat, change: dict[str, object], message: str) -> None:
    engine = StubEngine(chat)
    with pytest.raises(UserError, match=message):
        await play(player_of(engine), replace(TASK, **change))  # type: ignore[arg-type]
    assert engine.requests == []


def test_frames_are_encoded_once() -> None:
    frames = FrameCache(size=400)  # bytes: two of these three pictures
    picture = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    first = frames.frame(picture)
    assert frames.frame(picture.copy()) is first
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(first.png))), picture)
    wide = frames.frame(np.zeros((2, 3, 3), np.uint8))
    tall = frames.frame(np.zeros((3, 2, 3), np.uint8))  # same bytes, another shape
    assert wide.sha256 != tall.sha256
    again = frames.frame(picture)  # was forgotten; made anew, alike
    assert again is not first and again.sha256 == first.sha256
