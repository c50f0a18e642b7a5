"""An environment of the user's own, by module and class; and ours for other people's tools."""

import re
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from tandem.envs import get_spec, make, seeds
from tandem.envs.as_gymnasium import as_gymnasium
from tandem.envs.maze2d import MOVED
from tandem.types import UserError

sys.path.insert(0, str(Path(__file__).parent))  # for env_worlds, as the ids below name it


def test_three_methods_are_enough():
    env = make("env_worlds:Guess?highest=3")
    env.reset(5)
    assert env.instruction == "Guess a number from 0 to 3. Seed 5."
    assert env.step("2").task_reward == 0.0 and env.step(" 1 ").task_reward == 1.0
    spec = get_spec("env_worlds:Guess")
    assert spec.optimal_turns is None and spec.turn_limit is None and len(spec.task_digest(3)) == 64
    few = "env_worlds:Guess?highest=3&named=false"
    assert spec.task_digest(1) != spec.task_digest(2), "their instructions differ"
    assert len({get_spec(few).task_digest(seed) for seed in range(20)}) == 1, "nothing that is shown differs"


def test_a_class_may_say_more_of_itself():
    spec = get_spec("env_worlds:Described?highest=4")
    assert spec.optimal_turns and spec.optimal_turns(0) == 1 and spec.task_digest(2) == spec.task_digest(7)


@pytest.mark.parametrize(
    ("env_id", "message"),
    [
        ("not_there.envs:Mine", "PYTHONPATH"),
        ("env_worlds:Mine", "Mine"),
        ("env_worlds:np", "not a class"),
        ("env_worlds:NoClose", r"no method close\(\)"),
        ("env_worlds:Guess?lowest=1", "lowest"),
        ("env_worlds:Described?lowest=1", "lowest"),
        ("env_worlds:Guess?highest=many", "highest=many: Guess does not take these options: highest must be int"),
        ("env_worlds:Described?highest=many", "highest=many: Described does not take these options: highest"),
        ("env_worlds:Raises", "env_worlds:Raises: ZeroDivisionError: of my own"),
        ("env_worlds_broken:Mine", "NameError: name 'numpi'"),
        ("env_worlds_quits:Mine", "SystemExit: 3"),
        ("env_worlds", "package.module:Class"),
    ],
)
def test_what_is_wrong_is_one_clear_line(env_id, message):
    with pytest.raises(UserError, match=message) as caught:
        get_spec(env_id)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["task_digest", "optimal_turns", "shortest", "expert", "describe"])
@pytest.mark.parametrize(
    ("what", "message"), [("raise", "Speechless$"), ("null", "BadOutput: .*, not NoneType$"), ("-1", "BadOutput: ")]
)
def test_what_a_description_answers_is_not_believed(name, what, message):
    env_id = f"env_worlds:Misdescribed?what={what}"
    spec = get_spec(env_id)
    with pytest.raises(UserError, match=f"^{re.escape(env_id)}: {name}: {message}"):
        getattr(spec, name)(spec.make() if name == "expert" else 0)


@pytest.mark.parametrize("digest", ["zz", "zzzzzzzzzzzzzzzz", '"0123456789abcde"', '" 123456789abcdef"'])
def test_a_digest_is_hexadecimal(digest):
    with pytest.raises(UserError, match="task_digest: BadOutput: the answer must be 16 or more hexadecimal digits"):
        seeds(f"env_worlds:Misdescribed?what={digest}", "train", 1)


def test_a_reset_that_raises_what_is_no_exception_is_one_clear_line_but_for_the_user_s_own_interrupt():
    for how in ("GeneratorExit", "CancelledError", "KeyboardInterrupt"):
        with ThreadPoolExecutor(1) as pool, pytest.raises(UserError, match=f"Quits.how={how}: .*{how}"):
            pool.submit(get_spec(f"env_worlds:Quits?how={how}").task_digest, 1).result()
    with pytest.raises(KeyboardInterrupt):
        get_spec("env_worlds:Quits?how=KeyboardInterrupt").task_digest(1)


def test_a_reset_that_raises_is_one_clear_line_where_tasks_are_looked_for():
    with pytest.raises(UserError, match=r"env_worlds:Guess.highest=-1: task_digest: ZeroDivisionError"):
        seeds("env_worlds:Guess?highest=-1", "train", 3)


@pytest.mark.parametrize("env_id", ["maze2d:tiny", "maze2d:easy?style=night", "slide:8", "sort:5"])
def test_ours_pass_gymnasium_s_own_check(env_id):
    env = as_gymnasium(env_id)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*reset.*")
        check_env(env, skip_render_check=env_id.startswith("sort"))
    env.close()


def test_ours_play_under_gymnasium():
    env = as_gymnasium("maze2d:tiny?max_moves=2")
    seen, info = env.reset(seed=3)
    assert np.array_equal(seen, make("maze2d:tiny").reset(3).images[0]) and "red square" in info["instruction"]
    assert env.observation_space.contains(seen) and env.action_space.contains("('move', 0)")
    after, reward, terminated, truncated, info = env.step("('move', 0)")
    assert info["text"] == MOVED and reward == 0.0 and not terminated
    assert np.array_equal(after, np.asarray(env.render()))
    *_, terminated, truncated, info = env.step("?")
    assert truncated and not terminated and info["task_reward"] == 0.0
    one, other = (env.reset(seed=9)[0], env.reset()[0])
    assert not np.array_equal(one, other), "without a seed another task"


def test_gymnasium_is_imported_only_when_it_is_used():
    for env_id, unwanted in (("maze2d:tiny", {"gymnasium", "torch", "ray"}), ("gym:CartPole-v1", {"torch", "ray"})):
        code = f"import sys, tandem.envs as e; e.make('{env_id}'); sys.exit(len({unwanted} & set(sys.modules)))"
        subprocess.run([sys.executable, "-c", code], check=True)
