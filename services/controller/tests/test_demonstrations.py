"""What is imitated: real episodes of a real environment, the same ones for the same cursor."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tandem.config import Config
from tandem.envs import get_spec, make, tasks
from tandem.envs.tasks import split_of
from tandem.model.chat import ChatFormat
from tandem.storage.episodes import write_groups
from tandem.types import NotFound, StopReason, TrajectoryGroup, UserError
from tandem_controller.demonstrations import Expert, Recorded, open_demonstrations

MODEL = Path(__file__).parents[3] / "models" / "tiny-qwen3vl"
CHAT = ChatFormat.load(MODEL)
IMAGE_TOKENS = 16


def config(**sections: dict[str, Any]) -> Config:
    return Config.model_validate(
        {"model": {"path": str(MODEL)}, "rollout": {"engine": {"max_model_len": 1024}}, **sections}
    )


def collapsed(ids: tuple[int, ...]) -> tuple[int, ...]:
    """One placeholder an image, as the transcript writes it."""
    text = list(ids)
    for at in reversed(range(1, len(text))):
        if text[at] == text[at - 1] == CHAT.image_id:
            del text[at]
    return tuple(text)


@pytest.mark.parametrize("window", [0, 1, 2])
def test_the_expert_solves_every_task_in_the_prompts_of_a_rollout(window: int) -> None:
    groups, _ = Expert(config(env={"window": window}, sft={"batch": 6})).take(100)
    spec, env = get_spec("maze2d:tiny"), make("maze2d:tiny")
    assert spec.optimal_turns is not None
    for group in groups:
        (episode,) = group.trajectories
        assert (episode.solved, episode.stop_reason) == (True, StopReason.TERMINATED)
        assert len(episode.turns) == spec.optimal_turns(group.seed)
        seen, said = [(env.reset(group.seed).text, 1)], []
        for turn in episode.turns:
            assert collapsed(turn.prompt_ids) == CHAT.window_prompt(env.instruction, seen, said, window)
            assert turn.prompt_ids.count(CHAT.image_id) == IMAGE_TOKENS * len(turn.images)
            assert len(turn.images) == min(window or len(seen), len(seen))
            assert turn.completion_ids[-1] == CHAT.end_id and len(turn.rollout_logprobs) == len(turn.completion_ids)
            said.append(turn.completion_ids)
            seen.append((env.step(turn.text).observation.text, 1))
        assert set(group.images) == {name for turn in episode.turns for name in turn.images}


def test_a_cursor_gives_the_same_training_tasks_and_then_the_next() -> None:
    settings = config(sft={"batch": 4, "skill": 0.5})
    first, cursor = Expert(settings).take(0)
    second, _ = Expert(settings).take(cursor)
    again = Expert(settings)
    assert again.take(0) == (first, cursor) and again.take(cursor)[0] == second
    assert [g.seed for g in first + second] == sorted({g.seed for g in first + second})
    digest = get_spec("maze2d:tiny").task_digest
    assert {split_of(digest(group.seed)) for group in first + second} == {"train"}
    other = config(sft={"batch": 4, "skill": 0.5}, run={"seed": 1})
    assert Expert(other).take(0)[0] != first, "another run errs at other places"


def test_skill_is_the_share_of_expert_actions() -> None:
    episodes = [g.trajectories[0] for g in Expert(config(sft={"batch": 200, "skill": 0.6})).take(0)[0]]
    env, spec = make("maze2d:tiny"), get_spec("maze2d:tiny")
    assert spec.expert is not None
    agreed = Counter[bool]()
    for group, episode in zip(Expert(config(sft={"batch": 200, "skill": 0.6})).take(0)[0], episodes, strict=True):
        env.reset(group.seed)
        for turn in episode.turns:
            agreed[turn.text == spec.expert(env)] += 1
            env.step(turn.text)
    share = agreed[True] / agreed.total()
    assert share == pytest.approx(0.6 + 0.4 / 4, abs=0.04), "a random action is one time in four the expert's"
    assert {episode.stop_reason for episode in episodes} == {StopReason.TERMINATED, StopReason.TURN_LIMIT}


def test_a_transcript_that_no_longer_fits_ends_as_in_the_engine() -> None:
    engine = {"max_model_len": 100}
    groups, _ = Expert(config(sft={"batch": 8}, rollout={"engine": engine})).take(0)
    cut = [g.trajectories[0] for g in groups if g.trajectories[0].stop_reason is StopReason.CONTEXT_LIMIT]
    assert cut and all(len(t.prompt_ids) + 16 <= 100 for episode in cut for t in episode.turns)
    with pytest.raises(UserError, match="not even the first prompt fits"):
        Expert(config(rollout={"engine": {"max_model_len": 40}})).take(0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    groups, _ = Expert(config(sft={"batch": 12, "skill": 0.8}, env={"max_turns": 10})).take(0)
    merged = [pair(a, b) for a, b in zip(groups[::2], groups[1::2], strict=True)]
    write_groups(tmp_path / "episodes", merged)
    return tmp_path / "episodes"


def pair(a: TrajectoryGroup, b: TrajectoryGroup) -> TrajectoryGroup:
    """Two episodes as one group, of a later policy version, one of them a failure of the machinery if unsolved."""
    (first,), (second,) = a.trajectories, b.trajectories
    turns = tuple(replace(turn, policy_version=9) for turn in second.turns)
    stop = second.stop_reason if second.solved else StopReason.ENGINE_ERROR
    members = (first, replace(second, member=1, turns=turns, stop_reason=stop))
    return replace(a, policy_version=9, trajectories=members, images={**a.images, **b.images})


def test_recorded_episodes_come_once_an_epoch_in_changing_order(folder: Path) -> None:
    source = Recorded(config(sft={"episodes": str(folder), "solved_only": False, "batch": 3}))
    count = len(source.episodes)
    assert 6 < count < 12, "those that the machinery ended are left out"
    epochs, cursor = [], 0
    for _ in range(2):
        order: list[str] = []
        while len(order) < count:
            groups, cursor = Recorded(source.config).take(cursor)
            order += [group.group_id.partition("-")[2] for group in groups]
        epochs.append(order[:count])
        cursor = count  # a batch may reach into the next epoch
    assert len(set(epochs[0])) == count and sorted(epochs[0]) == sorted(epochs[1]) and epochs[0] != epochs[1]
    for group in source.take(0)[0]:
        (episode,) = group.trajectories
        assert (episode.member, group.policy_version) == (0, 0)
        assert {turn.policy_version for turn in episode.turns} == {0}
        assert set(group.images) == {name for turn in episode.turns for name in turn.images}
    large, _ = Recorded(config(sft={"episodes": str(folder), "batch": 40})).take(0)
    assert len({group.group_id for group in large}) == 40 and all(group.trajectories[0].solved for group in large)


def test_episodes_of_evaluation_tasks_are_not_imitated(folder: Path, tmp_path: Path) -> None:
    """They may be recorded, by `tandem eval --save`; trained on they would make every later figure worthless."""
    expert = Expert(config())
    evaluated = [expert.play(seed) for split in ("fixed", "heldout") for seed in tasks.seeds("maze2d:tiny", split, 3)]
    write_groups(tmp_path / "evaluated", evaluated)
    with pytest.raises(UserError, match="no episode to imitate; record training tasks"):
        open_demonstrations(config(sft={"episodes": str(tmp_path / "evaluated"), "solved_only": False}))
    source = Recorded(config(sft={"episodes": str(folder)}))
    write_groups(folder, evaluated)
    assert Recorded(source.config).episodes == source.episodes


def test_what_cannot_be_imitated_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"index\.jsonl"):
        open_demonstrations(config(sft={"episodes": str(tmp_path / "none")}))
    (group, *_), _ = Expert(config(sft={"batch": 1, "skill": 0.0}, env={"max_turns": 2})).take(0)
    write_groups(tmp_path / "unsolved", [group])
    with pytest.raises(UserError, match=r"no episode to imitate; sft\.solved_only=false"):
        open_demonstrations(config(sft={"episodes": str(tmp_path / "unsolved")}))
    turn = replace(group.trajectories[0].turns[0], completion_ids=(1, 2), rollout_logprobs=(0.0, 0.0))
    odd = replace(group, trajectories=(replace(group.trajectories[0], turns=(turn,)),))
    write_groups(tmp_path / "odd", [odd])
    with pytest.raises(UserError, match="another tokenizer"):
        open_demonstrations(config(sft={"episodes": str(tmp_path / "odd"), "solved_only": False}))
    with pytest.raises(UserError, match="max_tokens 2: the expert's"):
        Expert(config(rollout={"max_tokens": 2})).take(0)
