"""Other people's environments: gymnasium's own, VisGym's interface, text games."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from tandem.envs import get_spec, make, seeds
from tandem.envs.gym_adapter import read_tuple
from tandem.envs.tasks import up_to
from tandem.types import UserError

sys.path.insert(0, str(Path(__file__).parent))  # for env_worlds, as the ids below name it

LAKE = "gym:FrozenLake-v1?is_slippery=false&actions=left|down|right|up"


@pytest.fixture(scope="module", autouse=True)
def worlds():
    gymnasium.register("tandem-tests/Echo-v0", entry_point="env_worlds:Echo", max_episode_steps=3)
    gymnasium.register("corridor/easy", entry_point="env_worlds:Corridor", disable_env_checker=True)
    yield
    del gymnasium.registry["tandem-tests/Echo-v0"], gymnasium.registry["corridor/easy"]


def play(env_id: str, seed: int, texts: list[str]):
    env = make(env_id)
    seen = env.reset(seed)
    results = []
    for text in texts:
        results.append(env.step(text))
        if results[-1].terminated:
            break
    env.close()
    return seen, results


def test_frozen_lake_by_names():
    spec = get_spec(LAKE)
    assert spec.turn_limit == 100 and spec.actions == ("left", "down", "right", "up") and spec.optimal_turns is None
    assert "left, down, right, up" in make(LAKE).instruction
    way = ["I go Down.", "down", "right", "right", "down", "right"]  # of the 4x4 map that gymnasium ships
    seen, results = play(LAKE, 0, way)
    (first,) = seen.images
    assert first.shape == (256, 256, 3) and first.dtype == np.uint8 and seen.text == ""
    assert [r.task_reward for r in results] == [0, 0, 0, 0, 0, 1] and results[-1].terminated
    assert results[-1].info["moves"] == 6 and not results[-1].info["out_of_turns"]
    assert not np.array_equal(first, results[0].observation.images[0])


def test_text_without_an_action_is_a_turn_that_moves_nothing_and_the_limit_counts_it():
    env = make(f"{LAKE}&max_episode_steps=3")
    seen = env.reset(0)
    lost = env.step("hello, downtown")  # no whole word of it is an action
    assert not lost.parsed and lost.feedback == "Not understood." and lost.info["invalid"] == 1
    assert np.array_equal(lost.observation.images[0], seen.images[0])
    env.step("?")
    last = env.step("?")
    assert last.terminated and last.info["out_of_turns"] == 1.0 and last.task_reward == 0.0
    with pytest.raises(RuntimeError):
        env.step("down")


def test_taxi_in_numbers_and_its_threshold():
    spec = get_spec("gym:Taxi-v4")
    assert spec.actions == tuple("012345") and spec.turn_limit == 200
    one, two = (play("gym:Taxi-v4", 7, ["action 1"]) for _ in range(2))
    assert np.array_equal(one[0].images[0], two[0].images[0]), "same seed, same start"
    assert not np.array_equal(one[0].images[0], play("gym:Taxi-v4", 8, [])[0].images[0])
    (result,) = one[1]
    assert result.reward == -1.0 and result.task_reward == 0.0  # -1 is below the threshold of 8


def test_cart_pole_falls_and_frames_are_shrunk():
    seen, results = play("gym:CartPole-v1?size=64", 0, ["1"] * 20)
    assert seen.images[0].shape == (43, 64, 3)
    assert results[-1].terminated and results[-1].task_reward == 0.0 and results[-1].info["out_of_turns"] == 0.0
    assert sum(r.reward for r in results) == len(results) < 12


def test_a_return_counts_as_solved_once_the_environment_has_ended_the_episode():
    *before, last = play("gym:CartPole-v1?solved_at=5&size=32", 0, ["1"] * 20)[1]
    assert len(before) > 6 and not any(r.task_reward for r in before)
    assert last.terminated and last.task_reward == 1.0
    _, results = play("gym:CliffWalking-v1?solved_at=-13", 0, ["0", *["1"] * 11, "2"])
    assert results[-1].terminated and results[-1].task_reward == 1.0  # the shortest way costs 13


@pytest.mark.parametrize(
    "env_id",
    [
        "gym:CliffWalking-v1?solved_at=-13&size=32",
        "gym:MountainCar-v0?size=32",
        "gym:CartPole-v1?solved_at=5&size=32",
        f"{LAKE}&size=32&solved_at=-1",
        "gym:tandem-tests/Echo-v0?solved_at=-9",
        "gym:tandem-tests/Echo-v0?solved_at=is_success",
        "gym:corridor/easy",
    ],
)
def test_garbage_never_solves_and_is_never_the_best_play(env_id):
    _, results = play(env_id, 0, ["GARBAGE"] * 100)
    assert not any(r.task_reward for r in results) and not any(r.parsed for r in results)
    assert {r.reward for r in results} == {-1.0}
    limit = get_spec(env_id).turn_limit
    assert len(results) == min(limit or 100, 100) and results[-1].terminated == (limit is not None and limit <= 100)
    assert results[-1].info["out_of_turns"] == results[-1].terminated


def test_an_action_after_much_garbage_is_no_solution_either():
    _, results = play("gym:MountainCar-v0?size=32", 0, [*["GARBAGE"] * 199, "0", "0"])
    assert len(results) == 200 and results[-1].terminated and results[-1].info["out_of_turns"] == 1.0
    assert results[-1].parsed and results[-1].task_reward == 0.0  # a return of -1, above the threshold of -110


def test_what_a_turn_without_an_action_costs_is_an_option_and_no_part_of_the_return():
    lost, *_, last = play(f"{LAKE}&invalid_reward=-0.25", 0, ["?", "down", "down", "right", "right", "down", "right"])[
        1
    ]
    assert lost.reward == -0.25 and last.task_reward == last.reward == 1.0


def test_where_nothing_tells_success_the_id_is_refused():
    with pytest.raises(UserError, match=r"solved_at=RETURN .*solved_at=is_success"):
        get_spec("gym:CliffWalking-v1")
    with pytest.raises(UserError, match="solved_at"):
        get_spec("gym:tandem-tests/Echo-v0?success=false")
    with pytest.raises(UserError, match="info has no is_success"):
        play("gym:tandem-tests/Echo-v0?success=false&solved_at=is_success", 0, ["please"])


def test_a_text_game():
    env_id = "gym:tandem-tests/Echo-v0?word=now&solved_at=is_success"
    spec = get_spec(env_id)
    assert spec.turn_limit == 3 and spec.actions == ()
    seen, (no, lost, yes) = play(env_id, 0, ["later", "NOW!", "now"])
    assert seen.images == () and seen.text == "Say the word."
    assert (no.feedback, no.parsed, no.task_reward) == ("No.", True, 0.0)
    assert (lost.feedback, lost.parsed) == ("Not understood.\nNo.", False)  # what is still to be seen comes with it
    assert (yes.feedback, yes.task_reward, yes.reward, yes.terminated) == ("Thanks.", 1.0, -1.0, True)
    assert yes.info["is_success"] == 1.0 and not {"words", "gap", "far"} & set(yes.info)


def test_a_map_in_letters_shows_where_the_agent_is():
    seen, (result,) = play("gym:FrozenLake-v1?render=ansi&is_slippery=false", 0, ["2"])
    assert seen.images == () and seen.text.splitlines()[0] == "[S]FFF"
    assert "S[F]FF" in result.feedback


def test_visgym_s_interface():
    spec = get_spec("gym:corridor/easy")
    assert spec.turn_limit is None and spec.actions == ()
    env = make("gym:corridor/easy?length=6")
    targets = set()
    for seed in range(8):
        env.reset(seed)
        targets.add(target := int(env.instruction.split()[1]))
        assert "corridor of 6" in env.instruction
        for _ in range(target):
            result = env.step("Thinking (hard): the answer is (\"move\", 1), not ('stop', 'stop').")
        assert result.info["place"] == target and result.feedback == "Action executed successfully."
        assert not result.terminated and result.task_reward == 0.0 and result.info["moves"] == target
        end = env.step("('stop', 'stop')")
        assert end.terminated and end.task_reward == end.reward == 1.0
    assert len(targets) > 1
    env.reset(0)
    unknown, nothing = env.step("('fly', 3)"), env.step("fly!")
    assert "not recognized" in unknown.feedback and not nothing.parsed
    assert env.step("('stop', 'stop')").task_reward == 0.0


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("('move', 0)", "('move', 0)"),
        ('so (I think) ("move", (7, 1)) it is', "('move', (7, 1))"),
        ("('move', [4.0, -1])", "('move', [4.0, -1])"),
        ("(move, 0)", None),
        ("('a', 'b', 'c')", None),
        ("(" * 3000, None),
        ("", None),
    ],
)
def test_tuples_are_found_in_text(text, found):
    assert read_tuple(text) == found


@pytest.mark.parametrize(
    ("env_id", "message"),
    [
        ("gym:Nope-v1", "doesn't exist"),
        ("gym:not_there:Nope-v1", "not_there"),
        ("gym:FrozenLake-v1?depth=3", "depth"),
        ("gym:FrozenLake-v1?actions=a|b", "each of its 4 actions"),
        ("gym:FrozenLake-v1?actions=a|b|a|c", "each of its 4 actions"),
        ("gym:FrozenLake-v1?size=big", "size"),
        ("gym:FrozenLake-v1?size=-1", "size=-1"),
        ("gym:FrozenLake-v1?solved_at=never", "solved_at=never"),
        ("gym:env_worlds_broken:Mine-v0", "NameError: name 'numpi'"),
        ("gym:CartPole-v1?render=ansi", "no ansi rendering"),
        ("gym:Pendulum-v1", "Discrete and Text"),
        ("gym:", "unknown environment"),
    ],
)
def test_what_cannot_be_played_is_one_clear_line(env_id, message):
    with pytest.raises(UserError, match=message) as caught:
        get_spec(env_id)
    assert "\n" not in str(caught.value) and env_id.partition("?")[0] in str(caught.value)


def test_episodes_side_by_side_do_not_disturb_one_another():
    """pygame is shared by all of them, and each environment quits it when it closes."""
    texts = ["down", "down", "right", "right"]
    alone = [r.observation.images[0] for r in play(LAKE, 0, texts)[1]]
    with ThreadPoolExecutor(6) as threads:
        for played in threads.map(lambda _: play(LAKE, 0, texts)[1], range(24)):
            assert all(np.array_equal(r.observation.images[0], a) for r, a in zip(played, alone, strict=True))


AT_ONCE = """
import sys, threading
from tandem.envs import make
sys.setswitchinterval(1e-6)
together, seen = threading.Barrier(8), []
def first():
    together.wait()
    seen.append(make(sys.argv[1]).reset(1).images[0].shape)
def held_up(frame, event, argument):
    if frame.f_code.co_filename.endswith("surfarray.py") and frame.f_code.co_name == "<module>":
        threading.Event().wait(0.1)
threading.settrace(held_up)
threads = [threading.Thread(target=first) for _ in range(together.parties)]
for step in (threading.Thread.start, threading.Thread.join):
    for thread in threads:
        step(thread)
assert seen == [(256, 256, 3)] * len(threads), f"{len(threads) - len(seen)} failed"
"""


@pytest.mark.parametrize("process", range(3))
def test_the_first_frames_of_a_process_may_be_drawn_by_many_threads_at_once(process):
    """pygame loads what makes arrays when it is first used, and not safely. Only a fresh process shows it, and rarely,
    unless that load takes its time."""
    subprocess.run([sys.executable, "-c", AT_ONCE, LAKE], check=True)


def starts(env_id: str, chosen: list[int]) -> set[bytes]:
    env = make(env_id)
    return {env.reset(seed).images[0].tobytes() for seed in chosen}


def test_no_start_is_trained_on_and_evaluated_on():
    """A corridor has 199 starts: other seeds alone are no other tasks."""
    env_id = "gym:corridor/easy?length=200"
    fixed, train = seeds(env_id, "fixed", 2), seeds(env_id, "train", 400)
    trained, evaluated = starts(env_id, train), starts(env_id, fixed)
    assert len(evaluated) == 2 and 50 < len(trained) < 199 and not trained & evaluated


def test_an_environment_with_one_start_can_be_trained_on_but_not_split():
    assert seeds(LAKE, "train", 3, start=7) == [7, 8, 9]
    assert up_to(LAKE, "fixed", 4) == up_to(LAKE, "heldout", 4) == []
    with pytest.raises(UserError, match="has only 0 tasks"):
        seeds(LAKE, "heldout", 4)
