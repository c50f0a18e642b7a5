"""How the tiny model is made: what it is shown, and that a step learns."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tandem.envs import get_spec, seeds, split_of
from tandem.envs.layout import digest
from tandem.envs.maze2d import MOVED
from tandem.types import UserError
from tandem_learner import tiny
from tandem_learner.tiny_cli import _override
from tandem_learner.tiny_data import action_example, answer, demonstrate, maze_table, with_question
from tandem_learner.tiny_eval import solve_rate

MODEL = Path(__file__).parents[3] / "models" / "tiny-qwen3vl"


@pytest.fixture(scope="module")
def table():
    return maze_table(40, first_seed=tiny.PretrainConfig().first_seed)


@pytest.fixture(scope="module")
def policy():
    torch.set_num_threads(1)
    return tiny.open_policy(MODEL)


@pytest.mark.parametrize("config", [tiny.PretrainConfig(), tiny.NarrowConfig()])
def test_no_evaluation_layout_is_ever_shown(config):
    shown = {digest(walls) for walls in maze_table(400, config.first_seed).walls}
    assert {split_of(layout) for layout in shown} == {"train"}
    layout = get_spec(tiny.ENV_ID).task_digest
    for split, count in (("fixed", 64), ("heldout", 256)):
        assert not shown & {layout(seed) for seed in seeds(tiny.ENV_ID, split, count)}


def test_following_the_table_reaches_the_goal(table):
    step = {0: 1, 1: -4, 2: -1, 3: 4}  # on rooms numbered row by row, 4 a row
    for maze in range(len(table.walls)):
        room, moves = 0, 0
        while room != 15:
            direction = int(table.oracle[maze, room])
            assert table.open[maze, room, direction]
            room, moves = room + step[direction], moves + 1
        assert moves <= 14


def test_the_unskilled_demonstrator_ignores_dead_ends_but_not_walls(table):
    rng = np.random.default_rng(0)
    picks = [(m, r, demonstrate(table, m, r, 0.0, rng)) for m in range(40) for r in range(15)]
    assert all(table.open[m, r, d] for m, r, d in picks)
    assert all(d in (0, 3) for m, r, d in picks if table.open[m, r, [0, 3]].any())
    wrong = np.mean([d != table.oracle[m, r] for m, r, d in picks])
    assert 0.1 < wrong < 0.6
    assert all(demonstrate(table, m, r, 1.0, rng) == table.oracle[m, r] for m, r, _ in picks)


def test_answers_describe_what_is_seen(table):
    assert answer(table, "Disc?", 0, 6) == "1 2"
    assert answer(table, "Directions?", 0, 6).split() == [str(d) for d in table.oracle[0, :15]]
    assert answer(table, "Open?", 0, 6).split() == [str(d) for d in range(4) if table.open[0, 6, d]]


def test_loss_weights_cover_answers_only(policy, table):
    chat = policy.chat
    plain = action_example(chat, table, 0, 5, 3, MOVED)
    asked = with_question(chat, plain, "Disc?", "1 1", weight=1.0)
    assert sum(plain.weights) == pytest.approx(1.0) and sum(asked.weights) == pytest.approx(2.0)
    trained = [i for i, w in zip(asked.completion_ids, asked.weights, strict=True) if w > 0]
    assert chat.decode(trained) == "('move', 3)1 1" and trained.count(chat.end_id) == 2


def test_pretrain_then_narrow_write_models_that_learned(tmp_path):
    small: dict[str, Any] = {
        "mazes": 40,
        "warmup": 4,
        "decay": 4,
        "batch": 16,
        "eval_every": 1000,
        "fixed": 2,
        "heldout": 2,
    }
    records: list[dict] = []
    tiny.pretrain(None, tmp_path / "base", tiny.PretrainConfig(steps=20, bf16=False, **small), records.append)
    losses = [record["loss"] for record in records if "loss" in record]
    assert losses[-1] < 6.0 < 2 * np.log(418)  # a uniform guess loses ln 418 = 6.04 on each of the two answers
    figures = tiny.narrow(tmp_path / "base", tmp_path / "out", tiny.NarrowConfig(steps=2, **small), records.append)
    assert {"fixed_greedy", "fixed_sampled", "heldout_greedy", "heldout_sampled", "seconds"} == set(figures)
    record = json.loads((tmp_path / "out" / "narrow.json").read_text(encoding="utf-8"))
    assert record["config"]["base"] == "base" and record["figures"] == figures
    before, after = (tiny.open_policy(tmp_path / name).model.state_dict() for name in ("base", "out"))
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed and not any("visual" in name for name in changed), "narrow leaves the vision tower as it is"


def test_broadened_examples_have_looks_of_their_own(tmp_path, policy):
    """Of a base in ever new styles: the same mazes, answers and tokenizer."""
    chat, table = policy.chat, tiny.maze_table(40, 1_000_000)
    rng = np.random.default_rng(0)
    config = replace(tiny.BROADEN, restyled=0.5)
    made = [tiny._oracle_example(chat, table, "Disc?", config, rng) for _ in range(60)]
    corners = {tuple(example.image[0, 0]) for example in made}  # of the outer wall
    assert (110, 110, 110) in corners and 15 < len(corners) < 45
    small = {"steps": 2, "mazes": 40, "warmup": 1, "decay": 1, "batch": 4, "fixed": 2, "heldout": 2, "bf16": False}
    tiny.pretrain(MODEL, tmp_path / "wide", replace(tiny.BROADEN, **small), lambda record: None)
    record = json.loads((tmp_path / "wide" / "broaden.json").read_text(encoding="utf-8"))
    assert record["kind"] == "broaden" and record["config"]["restyled"] == 0.8
    assert (tmp_path / "wide" / "tokenizer.json").read_bytes() == (MODEL / "tokenizer.json").read_bytes()


def test_the_shipped_model_solves_what_its_record_says(policy):
    tasks = seeds(tiny.ENV_ID, "fixed", 64)
    assert 26 <= round(64 * solve_rate(policy, tiny.ENV_ID, tasks, temperature=0.0)) <= 30
    assert 0.35 < solve_rate(policy, tiny.ENV_ID, tasks, temperature=1.0) < 0.75


def test_settings_are_checked():
    config = _override(tiny.NarrowConfig(), ["steps=7", "lr=1", "freeze_vision=false"])
    assert (config.steps, config.lr, config.freeze_vision) == (7, 1.0, False)
    for bad in ("step=7", "steps=x", "steps=1.5", "freeze_vision=1"):
        with pytest.raises(UserError, match=bad.partition("=")[0]):
            _override(tiny.NarrowConfig(), [bad])
