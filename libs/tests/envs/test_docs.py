"""docs/environments.md: its example plays, its ids exist."""

import re
import shlex
import sys
from pathlib import Path

import pytest

from tandem.config import load_recipe
from tandem.envs import get_spec, make, seeds
from tandem.envs.checks import checked_observation, checked_result
from tandem.envs.gym_adapter import OWN
from tandem.envs.maze_style import STYLES

PAGE = (Path(__file__).parents[3] / "docs" / "environments.md").read_text(encoding="utf-8")


@pytest.fixture
def example(tmp_path, monkeypatch):
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)  # the class, then what continues it
    (tmp_path / "lamps.py").write_text("".join(blocks), encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "lamps:Lamps?lamps=7"
    sys.modules.pop("lamps", None)


def test_the_example_plays(example):
    env = make(example)
    for seed in range(20):
        seen = checked_observation(env.reset(seed))
        assert seen.images[0].shape == (16, 112, 3)
        lost = checked_result(env.step("all of them"))
        assert not lost.parsed and not lost.terminated
        for lamp, on in enumerate(seen.images[0][8, 8::16, 0] > 100):
            if on:
                result = checked_result(env.step(str(lamp)))
        assert result.terminated and result.task_reward == 1.0 and result.info["out_of_turns"] == 0.0
    env.reset(0)
    results = [env.step("9") for _ in range(14)]
    assert results[-1].terminated and results[-1].info["out_of_turns"] == 1.0 and results[-1].task_reward == 0.0


def test_the_example_s_expert_needs_as_many_turns_as_its_oracle_says(example):
    spec = get_spec(example)
    assert spec.expert and spec.optimal_turns and spec.turn_limit == 14
    for seed in range(20):
        env, turns, over = spec.make(), 0, False
        env.reset(seed)
        while not over:
            answer = spec.expert(env)
            assert answer in spec.actions
            result = env.step(answer)
            turns, over = turns + 1, result.terminated
        assert result.task_reward == 1.0 and turns == spec.optimal_turns(seed)


def test_the_example_s_commands_run_as_they_are_written(example):
    """As far as a config is made and the environment found: what follows takes minutes."""
    commands = re.findall(r"^    tandem (?:sft|train) (deploy/\S+\.yaml) (.*)", PAGE.replace("\\\n", " "), re.MULTILINE)
    assert len(commands) == 2
    for recipe, overrides in commands:
        config = load_recipe(Path(__file__).parents[3] / recipe, shlex.split(overrides))
        spec = get_spec(config.env.id)
        assert spec.turn_limit == config.env.max_turns


def test_the_example_has_tasks_enough_to_hold_some_out(example):
    assert len(seeds("lamps:Lamps", "fixed", 64)) == 64 and len(seeds("lamps:Lamps", "heldout", 256)) == 256


def test_every_id_and_option_of_the_page_is_known():
    for env_id in re.findall(r"maze2d:tiny\?[\w=&]+|gym:(?!my_)[A-Z][\w-]+\?[\w=&|.-]+", PAGE):
        assert get_spec(env_id).env_id == env_id
    assert all(style in PAGE for style in STYLES) and all(f"| `{option}` |" in PAGE for option in OWN)
