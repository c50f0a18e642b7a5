"""The rules of Maze2D: actions, feedback, rewards, limits, drawing."""

import numpy as np
import pytest

from tandem.envs import Env, env_ids, get_spec, make
from tandem.envs.layout import make_walls, shortest_path
from tandem.envs.maze2d import HIT_WALL, MOVED, NOT_UNDERSTOOD, PRESETS, action_text, parse_action
from tandem.envs.maze_style import CLASSIC
from tandem.types import UserError


def frame(env: Env, seed: int):
    (image,) = env.reset(seed).images
    return image


def play(env: Env, texts):
    return [env.step(text) for text in texts]


def solution(seed: int, name: str) -> list[str]:
    preset = PRESETS[name]
    path = shortest_path(make_walls(seed, preset.rooms), preset.start, preset.goal, preset.stride)
    return [action_text(direction) for direction in path]


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("('move', 3)", 3),
        ("I go right: (\"move\",0) then ('move', 1)", 0),
        ("( 'stop' , 'stop' )", "stop"),
        ("(move, 2)", 2),
        ("('stop', 'stop') or ('move', 1)", "stop"),
        ("('move', 4), ('move', 1), (stop, stop)", 1),
        ("('move', '1')", 1),
        ("('stop', 'now')", None),
        ("('move', 4)", None),
        ("('move', )", None),
        ("move 3", None),
        ("", None),
    ],
)
def test_parsing_is_tolerant_but_takes_the_first_action(text, action):
    assert parse_action(text) == action


@pytest.mark.parametrize("action", [0, 1, 2, 3, "stop"])
def test_demonstrated_texts_parse_back(action):
    assert parse_action(action_text(action)) == action


@pytest.mark.parametrize("seed", range(6))
def test_tiny_ends_solved_at_the_goal(seed):
    env = make("maze2d:tiny")
    env.reset(seed)
    results = play(env, solution(seed, "tiny"))
    assert [r.terminated for r in results] == [False] * (len(results) - 1) + [True]
    assert results[-1].task_reward == results[-1].reward == 1.0
    assert all(r.task_reward == 0.0 and r.feedback == MOVED for r in results[:-1])
    assert results[-1].info["shortest"] == results[-1].info["moves"] == len(results)
    with pytest.raises(RuntimeError):
        env.step("('move', 0)")


def test_easy_wants_a_stop_at_the_goal():
    env = make("maze2d:easy")
    env.reset(1)
    *_, last = play(env, solution(1, "easy"))
    assert not last.terminated and last.task_reward == 0.0
    end = env.step("('stop', 'stop')")
    assert end.terminated and end.task_reward == 1.0
    env.reset(1)
    early = env.step("('stop', 'stop')")
    assert early.terminated and early.task_reward == 0.0


def test_require_stop_and_max_moves_are_options():
    env = make("maze2d:easy?require_stop=false&max_moves=40")
    env.reset(1)
    assert play(env, solution(1, "easy"))[-1].task_reward == 1.0
    assert get_spec("maze2d:easy?max_moves=40").turn_limit == 40


def test_wall_and_nonsense_cost_a_turn_and_move_nothing():
    env = make("maze2d:tiny")
    first = frame(env, 0)
    hit = env.step("('move', 1)")
    lost = env.step("hello")
    assert (hit.feedback, hit.parsed) == (HIT_WALL, True)
    assert (lost.feedback, lost.parsed) == (NOT_UNDERSTOOD, False)
    (after,) = lost.observation.images
    assert np.array_equal(first, after)
    assert lost.info["wall_hits"] == 1 and lost.info["invalid"] == 1 and lost.info["moves"] == 0


def test_the_move_limit_ends_unsolved():
    env = make("maze2d:tiny")
    env.reset(0)
    results = play(env, ["('move', 1)"] * 14)
    assert results[-1].terminated and results[-1].info["out_of_turns"] == 1.0 and results[-1].task_reward == 0.0
    assert not any(r.terminated for r in results[:-1])


@pytest.mark.parametrize("name", list(PRESETS))
def test_the_move_limit_allows_every_shortest_path(name):
    spec = get_spec(f"maze2d:{name}")
    assert spec.optimal_turns and spec.turn_limit
    assert max(spec.optimal_turns(seed) for seed in range(1500)) <= spec.turn_limit
    # the longest path between corners visits at most n*n rooms, one fewer where a chessboard's colours forbid it
    n = PRESETS[name].rooms
    longest = (n * n - 1 - (n % 2 == 0)) * (3 - PRESETS[name].stride)
    assert spec.turn_limit == longest + PRESETS[name].require_stop


@pytest.mark.parametrize(("name", "side"), [("easy", 225), ("hard", 275), ("tiny", 64)])
def test_images_show_disc_and_square_in_opposite_corners(name, side):
    (image,) = make(f"maze2d:{name}").reset(5).images
    assert image.shape == (side, side, 3) and image.dtype == np.uint8
    agent, goal = (np.argwhere((image == colour).all(-1)) for colour in (CLASSIC.agent, CLASSIC.goal))
    assert agent.max() < side // 2 < goal.min()
    assert len(agent) > 40 and len(goal) > 40


def test_same_seed_same_episode():
    one, two = make("maze2d:hard"), make("maze2d:hard")
    assert np.array_equal(frame(one, 9), frame(two, 9))
    assert not np.array_equal(frame(one, 9), frame(two, 10))


def test_errors_are_one_clear_line():
    with pytest.raises(UserError, match="maze2d:tiny"):
        make("maze2d:huge")
    with pytest.raises(UserError, match="max_moves"):
        make("maze2d:tiny?max_move=3")
    for query in ("max_moves=0", "max_moves=-1", 'max_moves="3"', "max_moves=true", "max_moves=3.0", "max_moves"):
        with pytest.raises(UserError, match="max_moves"):
            make(f"maze2d:tiny?{query}")
    for query, known in (("style=neon", "night"), ("rooms=1", "2 to 16"), ("rooms=99", "2 to 16"), ("style=5", "str")):
        with pytest.raises(UserError, match=known):
            make(f"maze2d:tiny?{query}")
    assert {"maze2d:easy", "maze2d:hard", "maze2d:tiny", "slide:8", "sort:7"} <= set(env_ids())
