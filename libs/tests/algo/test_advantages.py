"""Group-relative advantages: numbers worked out by hand, and what must hold for all groups."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import tensor
from torch.testing import assert_close

from tandem.algo import group_advantages


def _advantages(returns: list[float], **settings: bool) -> torch.Tensor:
    table = tensor([returns], dtype=torch.float64)
    return group_advantages(table, torch.ones_like(table, dtype=torch.bool), **settings)[0][0]


def test_two_solved_of_four() -> None:
    # mean 1/2, squared deviations 4 x 1/4 = 1, over 3: std = 0.5773503; 0.5 / 0.5773513 = 0.8660239
    assert_close(_advantages([1, 0, 0, 1]), tensor([0.8660239, -0.8660239, -0.8660239, 0.8660239]))


def test_sample_deviation_and_eps_outside_the_root() -> None:
    # 1, 2, 3: deviations -1, 0, 1; sum of squares 2 over ddof 2: std = 1; 1 / 1.000001 = 0.999999
    assert_close(_advantages([1, 2, 3]), tensor([-0.999999, 0.0, 0.999999]), rtol=0, atol=1e-7)
    # returns apart by 2e-6: std = 2e-6 / sqrt(2) = 1.4142136e-6; 1e-6 / 2.4142136e-6 = 0.4142136
    assert_close(_advantages([0, 2e-6]), tensor([-0.4142136, 0.4142136]))


def test_centred_only() -> None:
    # mean of 1, 0, 0, 0 is 1/4
    assert_close(_advantages([1, 0, 0, 0], normalize_std=False), tensor([0.75, -0.25, -0.25, -0.25]))


def test_failed_members_count_for_nothing() -> None:
    returns = tensor([[1.0, 0.0, 99.0]])
    valid = tensor([[True, True, False]])
    # of 1 and 0: mean 1/2, std = sqrt(1/2) = 0.7071068; 0.5 / 0.7071078 = 0.7071058
    assert_close(group_advantages(returns, valid)[0], tensor([[0.7071058, -0.7071058, 0.0]]))


def test_group_of_one_is_zero() -> None:
    assert _advantages([7.5]).tolist() == [0.0]


def test_no_group() -> None:
    advantages, metrics = group_advantages(torch.zeros(0, 0), torch.zeros(0, 0, dtype=torch.bool))
    assert advantages.shape == (0, 0)
    assert metrics["advantage_std"] == 0.0


def test_metrics_are_over_valid_members() -> None:
    returns, valid = tensor([[1.0, 0.0, 5.0]]), tensor([[True, True, False]])
    metrics = group_advantages(returns, valid, normalize_std=False)[1]
    assert metrics == {"advantage_std": 0.5, "advantage_max": 0.5, "advantage_min": -0.5}


RETURNS = st.lists(st.floats(-100, 100), min_size=2, max_size=12)


@given(st.floats(-1e6, 1e6), st.integers(1, 16))
def test_equal_returns_give_exactly_zero(value: float, size: int) -> None:
    assert _advantages([value] * size).tolist() == [0.0] * size


@given(RETURNS, st.floats(-100, 100))
def test_shift_changes_nothing(returns: list[float], shift: float) -> None:
    rounded = [round(value, 3) for value in returns]  # a shift must not swallow a difference
    moved = _advantages([value + round(shift, 3) for value in rounded])
    assert_close(moved, _advantages(rounded), rtol=1e-4, atol=1e-4)


@given(RETURNS, st.randoms())
def test_order_changes_nothing(returns: list[float], random) -> None:
    order = list(range(len(returns)))
    random.shuffle(order)
    moved = _advantages([returns[i] for i in order])
    assert_close(moved, _advantages(returns)[order], rtol=1e-5, atol=1e-6)


@given(RETURNS)
def test_sum_is_zero_and_spread_at_most_one(returns: list[float]) -> None:
    advantages = _advantages(returns)
    assert abs(float(advantages.sum())) < 1e-4
    assert float(advantages.std()) < 1 + 1e-5


@given(st.lists(RETURNS.filter(lambda r: len(r) == 4), min_size=1, max_size=4))
def test_groups_do_not_see_each_other(groups: list[list[float]]) -> None:
    table = tensor(groups, dtype=torch.float64)
    together = group_advantages(table, torch.ones_like(table, dtype=torch.bool))[0]
    assert_close(together, torch.stack([_advantages(group) for group in groups]))
