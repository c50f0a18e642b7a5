"""Intervals, pass@k and McNemar's test against values worked out by hand, and what must hold for all."""

from fractions import Fraction
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_controller.statistics import effective_episodes, ks, mcnemar, pass_at_k, solve_rate, wilson

TASKS = st.integers(1, 5).flatmap(
    lambda samples: st.lists(st.lists(st.booleans(), min_size=samples, max_size=samples), min_size=1, max_size=40)
)


def test_wilson_against_values_worked_out_by_hand() -> None:
    # n=10, p=0.5, z=1.96: centre 0.5; half width z/(1+z2/n) * sqrt(p(1-p)/n + z2/4n2)
    #   = 1.96/1.38416 * sqrt(0.025 + 0.009604) = 1.41602 * 0.186021 = 0.263410
    assert wilson(5, 10) == pytest.approx((0.236590, 0.763410), abs=1e-4)
    # all of 64: upper 1, lower n/(n+z2) = 64/67.8415 = 0.943376
    assert wilson(64, 64) == pytest.approx((0.943376, 1.0), abs=1e-5)
    assert wilson(0, 0) == (0.0, 1.0)


@given(st.integers(1, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_holds_the_share_and_is_symmetric(counts: tuple[int, int]) -> None:
    solved, trials = counts
    low, high = wilson(solved, trials)
    assert 0 <= low <= solved / trials + 1e-12 and solved / trials - 1e-12 <= high <= 1
    assert wilson(trials - solved, trials) == pytest.approx((1 - high, 1 - low), abs=1e-12)


def test_episodes_of_one_task_are_not_independent() -> None:
    # Four tasks of four: rates 1, 1, 0, 0. p = 1/2, s2 = 4 * 1/4 / 3 = 1/3, p(1-p) n/s2 = 1/4 * 4 * 3 = 3: held at 4.
    assert effective_episodes([[True] * 4] * 2 + [[False] * 4] * 2) == 4
    # Rates 3/4, 1/2, 1/2, 1/4: s2 = (1/16 + 1/16) / 3 = 1/24, so 1/4 * 4 * 24 = 24: held at 16, the whole number.
    rates = [[True, True, True, False], [True, True, False, False], [False, False, True, True], [True, *[False] * 3]]
    assert effective_episodes(rates) == 16
    # Rates 1, 1/2, 1/2, 0: s2 = (1/4 + 1/4) / 3 = 1/6, so 1/4 * 4 * 6 = 6 independent episodes.
    rates = [[True] * 4, [True, True, False, False], [False, True, False, True], [False] * 4]
    assert effective_episodes(rates) == pytest.approx(6)
    assert solve_rate(rates) == pytest.approx((0.5, *wilson(3, 6)))
    assert effective_episodes([[True] * 4] * 8) == 8  # all alike: no more certain than one episode a task


@given(TASKS)
def test_an_interval_over_tasks_is_at_best_that_of_independent_episodes(tasks: list[list[bool]]) -> None:
    rate, low, high = solve_rate(tasks)
    episodes, solved = sum(map(len, tasks)), sum(map(sum, tasks))
    assert rate == pytest.approx(solved / episodes)
    assert low <= rate + 1e-12 and rate - 1e-12 <= high
    assert low <= wilson(solved, episodes)[0] + 1e-12 and high >= wilson(solved, episodes)[1] - 1e-12
    if len(tasks[0]) == 1:
        assert (low, high) == pytest.approx(wilson(solved, episodes))


def test_nothing_played_says_nothing() -> None:
    assert solve_rate([]) == (0.0, 0.0, 1.0)


def test_pass_at_k_by_hand() -> None:
    # 2 of 4 solved, k=2: of the 6 pairs one, that of the two failures, has no success: 5/6
    assert pass_at_k(4, 2, 2) == pytest.approx(5 / 6)
    assert [pass_at_k(4, 1, k) for k in (1, 2, 3, 4)] == pytest.approx([1 / 4, 1 / 2, 3 / 4, 1])
    assert (pass_at_k(4, 0, 4), pass_at_k(4, 4, 1)) == (0.0, 1.0)
    assert [ks(samples) for samples in (1, 2, 4, 6, 9)] == [(1,), (1, 2), (1, 2, 4), (1, 2, 4, 6), (1, 2, 4, 8, 9)]
    for samples, solved, k in ((4, 2, 5), (4, 2, 0), (4, 5, 1)):
        with pytest.raises(ValueError, match="cannot be estimated"):
            pass_at_k(samples, solved, k)


@given(st.integers(1, 8), st.data())
def test_pass_at_k_is_the_share_of_all_choices_of_k_with_a_success(samples: int, data: st.DataObject) -> None:
    solved, k = data.draw(st.integers(0, samples)), data.draw(st.integers(1, samples))
    choices = list(combinations([True] * solved + [False] * (samples - solved), k))
    assert pass_at_k(samples, solved, k) == pytest.approx(sum(map(any, choices)) / len(choices))


def test_mcnemar_by_hand() -> None:
    # 1 against 9: 2 * (C(10,0) + C(10,1)) / 2^10 = 22/1024
    assert mcnemar(1, 9) == pytest.approx(22 / 1024)
    assert mcnemar(0, 5) == pytest.approx(2 / 32)
    assert mcnemar(0, 0) == mcnemar(3, 3) == mcnemar(2, 3) == 1.0


@given(st.integers(0, 60), st.integers(0, 60))
def test_mcnemar_is_the_chance_of_a_split_at_least_as_uneven(first: int, second: int) -> None:
    row = [1]
    for _ in range(first + second):  # Pascal's triangle
        row = [a + b for a, b in zip([0, *row], [*row, 0], strict=True)]
    uneven = sum(ways for heads, ways in enumerate(row) if abs(2 * heads - first - second) >= abs(first - second))
    assert mcnemar(first, second) == pytest.approx(float(Fraction(uneven, sum(row))))
    assert mcnemar(first, second) == mcnemar(second, first)
