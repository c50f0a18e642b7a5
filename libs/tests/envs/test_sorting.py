"""The text game: a row of digits, swapped until it is sorted."""

import itertools

import pytest

from tandem.envs import get_spec, make, seeds
from tandem.envs.actions import NOT_UNDERSTOOD
from tandem.envs.sorting import inversions, start_row
from tandem.types import UserError

SPEC = get_spec("sort:7")


def test_swapping_neighbours_until_sorted():
    env = make("sort:4")
    seed = next(seed for seed in range(1000) if start_row(seed, 4) == (2, 1, 4, 3))
    seen = env.reset(seed)
    assert seen.images == () and seen.text == "2143"
    first = env.step("I swap ('swap', 3)")
    assert first.observation.text == "2134" and not first.terminated and first.reward == 0.0
    wasted = env.step("('swap', 4)")  # there is no fifth digit
    assert wasted.observation.text == f"{NOT_UNDERSTOOD}\n2134" and not wasted.parsed
    last = env.step("('swap', 1)")
    assert last.observation.text == "1234" and last.terminated
    assert last.task_reward == last.reward == 1.0
    assert last.info == {"shortest": 2.0, "moves": 2.0, "invalid": 1.0, "out_of_turns": 0.0}
    with pytest.raises(RuntimeError):
        env.step("('swap', 1)")


def test_the_limit_is_the_reversed_row_s_and_ends_unsolved():
    assert SPEC.turn_limit == 21 == inversions((7, 6, 5, 4, 3, 2, 1))
    env = make("sort:7?max_moves=2")
    env.reset(3)
    assert not env.step("?").terminated
    last = env.step("?")
    assert last.terminated and last.info["out_of_turns"] == 1.0 and last.task_reward == 0.0


@pytest.mark.parametrize("env_id", ["sort:3", "sort:7", "sort:9"])
def test_the_expert_needs_as_many_swaps_as_there_are_inversions(env_id):
    spec = get_spec(env_id)
    assert spec.expert and spec.optimal_turns
    for seed in range(50):
        env, turns, solved = spec.make(), 0, False
        env.reset(seed)
        while not solved:
            text = spec.expert(env)
            assert text in spec.actions
            result = env.step(text)
            solved, turns = result.task_reward == 1.0, turns + 1
        assert turns == spec.optimal_turns(seed) == result.info["shortest"]


def test_rows_are_uniform_and_never_sorted():
    rows = [start_row(seed, 3) for seed in range(6000)]
    counts = {row: rows.count(row) for row in set(rows)}
    assert len(counts) == 5 and (1, 2, 3) not in counts
    assert all(abs(count / 6000 - 0.2) < 0.025 for count in counts.values())  # standard error 0.005


def test_splits_share_no_row():
    found = [
        {SPEC.task_digest(seed) for seed in seeds("sort:7", split, count)}
        for split, count in (("fixed", 64), ("heldout", 200), ("train", 3000))
    ]
    for one, other in itertools.combinations(found, 2):
        assert not one & other


def test_options_and_names_are_checked():
    assert SPEC.variants == {"larger": ("sort:8", "sort:9")} and get_spec("sort:9").variants == {}
    assert make("sort:7").instruction == "Sort." and "swap" in make("sort:7?brief=false").instruction
    for env_id in ("sort:2", "sort:10", "sort:x", "sort:7?max_moves=0", "sort:7?moves=3"):
        with pytest.raises(UserError, match="sort"):
            make(env_id)
