"""Advantages: numbers worked out by hand, and what must hold for all groups and estimators."""

from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import tensor
from torch.testing import assert_close

from tandem.algo import ADVANTAGES, group_advantages
from tandem.config import AlgoConfig

all_estimators = pytest.mark.parametrize("name", ADVANTAGES)


def _advantages(name: str, *groups: list[float]) -> torch.Tensor:
    table = tensor(groups, dtype=torch.float64)
    return group_advantages(name, table, torch.ones_like(table, dtype=torch.bool))[0]


def test_config_knows_the_same_names() -> None:
    assert set(get_args(AlgoConfig.model_fields["advantage"].annotation)) == set(ADVANTAGES)


def test_grpo_two_solved_of_four() -> None:
    # mean 1/2, squared deviations 4 x 1/4 = 1, over 3: std = 0.5773503; 0.5 / 0.5773513 = 0.8660239
    assert_close(_advantages("grpo", [1, 0, 0, 1])[0], tensor([0.8660239, -0.8660239, -0.8660239, 0.8660239]))


def test_grpo_sample_deviation_and_eps_outside_the_root() -> None:
    # 1, 2, 3: deviations -1, 0, 1; sum of squares 2 over ddof 2: std = 1; 1 / 1.000001 = 0.999999
    assert_close(_advantages("grpo", [1, 2, 3])[0], tensor([-0.999999, 0.0, 0.999999]), rtol=0, atol=1e-7)
    # returns apart by 2e-6: std = 2e-6 / sqrt(2) = 1.4142136e-6; 1e-6 / 2.4142136e-6 = 0.4142136
    assert_close(_advantages("grpo", [0, 2e-6])[0], tensor([-0.4142136, 0.4142136]))


def test_dr_grpo_centres_only() -> None:
    # mean of 1, 0, 0, 0 is 1/4
    assert_close(_advantages("dr_grpo", [1, 0, 0, 0])[0], tensor([0.75, -0.25, -0.25, -0.25]))


def test_rloo_leaves_one_out() -> None:
    # the others of 1 are 0, 0, 0: 1 - 0; the others of a 0 are 1, 0, 0: 0 - 1/3
    assert_close(_advantages("rloo", [1, 0, 0, 0])[0], tensor([1.0, -1 / 3, -1 / 3, -1 / 3]))


def test_reinforce_pp_has_one_scale_for_all_groups() -> None:
    # centred: 1/2, -1/2 and 1, -1; squares 1/4 + 1/4 + 1 + 1 = 5/2 over 4 - 1: std = sqrt(5/6) = 0.9128709
    # 0.5 / 0.9128719 = 0.5477220; 1 / 0.9128719 = 1.0954439
    expected = tensor([[0.5477220, -0.5477220], [1.0954439, -1.0954439]])
    assert_close(_advantages("reinforce_pp", [1, 0], [2, 0]), expected)


def test_maxrl_weighs_by_the_pass_rate() -> None:
    # mean 1/4: (1 - 1/4) / (1/4) = 3, -1; mean 3/4: (1 - 3/4) / (3/4) = 1/3, -1
    expected = tensor([[3.0, -1.0, -1.0, -1.0], [1 / 3, 1 / 3, 1 / 3, -1.0]])
    assert_close(_advantages("maxrl", [1, 0, 0, 0], [1, 1, 1, 0]), expected)


def test_maxrl_is_zero_where_a_pass_rate_makes_no_sense() -> None:
    assert _advantages("maxrl", [-1, 0], [-1, 1]).tolist() == [[0.0, 0.0], [0.0, 0.0]]


@all_estimators
def test_failed_members_count_for_nothing(name: str) -> None:
    returns, valid = tensor([[1.0, 0.0, 99.0], [3.0, 1.0, -5.0]]), tensor([[True, True, False], [True, True, False]])
    found, metrics = group_advantages(name, returns, valid)
    without, same = group_advantages(name, returns[:, :2], valid[:, :2])
    assert found[:, 2].tolist() == [0.0, 0.0]
    assert torch.equal(found[:, :2], without)
    assert metrics == same


@all_estimators
def test_group_of_one_and_of_equals_is_exactly_zero(name: str) -> None:
    assert _advantages(name, [7.5], [3.0]).tolist() == [[0.0], [0.0]]
    assert _advantages(name, [0.1, 0.1, 0.1], [0.3, 0.3, 0.3]).tolist() == [[0.0] * 3] * 2


@all_estimators
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf"), 1e300])
@pytest.mark.parametrize("others", ["as bad", "good"])
def test_return_that_float32_cannot_hold_is_never_an_advantage_of_zero(name: str, bad: float, others: str) -> None:
    """The whole group is NaN, so that the update that it goes into is skipped; only who does not count stays 0."""
    returns = tensor([[bad, 1.0 if others == "good" else bad, bad]], dtype=torch.float64)
    found, _ = group_advantages(name, returns, tensor([[True, True, False]]))
    assert found.isnan().tolist() == [[True, True, False]]
    assert found[0, 2] == 0


@all_estimators
def test_return_that_is_not_finite_of_a_failed_member_is_not_looked_at(name: str) -> None:
    found, _ = group_advantages(name, tensor([[1.0, 0.0, float("nan")]]), tensor([[True, True, False]]))
    assert torch.equal(found[:, :2], _advantages(name, [1.0, 0.0]))


@all_estimators
def test_no_group(name: str) -> None:
    advantages, metrics = group_advantages(name, torch.zeros(0, 0), torch.zeros(0, 0, dtype=torch.bool))
    assert advantages.shape == (0, 0)
    assert metrics["advantage_std"] == 0.0


def test_metrics_are_over_valid_members() -> None:
    returns, valid = tensor([[1.0, 0.0, 5.0]]), tensor([[True, True, False]])
    metrics = group_advantages("dr_grpo", returns, valid)[1]
    assert metrics == {"advantage_std": 0.5, "advantage_max": 0.5, "advantage_min": -0.5}


RETURNS = st.lists(st.floats(-100, 100), min_size=2, max_size=12)
SHIFT_FREE = sorted(set(ADVANTAGES) - {"maxrl"})  # a pass rate has a zero point


@pytest.mark.parametrize("name", ADVANTAGES)
@given(value=st.floats(-1e6, 1e6), size=st.integers(1, 16))
def test_equal_returns_give_exactly_zero(name: str, value: float, size: int) -> None:
    assert _advantages(name, [value] * size)[0].tolist() == [0.0] * size


@pytest.mark.parametrize("name", SHIFT_FREE)
@given(returns=RETURNS, shift=st.floats(-100, 100))
def test_shift_changes_nothing(name: str, returns: list[float], shift: float) -> None:
    rounded = [round(value, 3) for value in returns]  # a shift must not swallow a difference
    moved = _advantages(name, [value + round(shift, 3) for value in rounded])
    assert_close(moved, _advantages(name, rounded), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ADVANTAGES)
@given(returns=RETURNS, random=st.randoms())
def test_permutation_of_members_changes_nothing(name: str, returns: list[float], random) -> None:
    rounded = [round(value, 3) for value in returns]
    order = list(range(len(rounded)))
    random.shuffle(order)
    moved = _advantages(name, [rounded[i] for i in order])[0]
    assert_close(moved, _advantages(name, rounded)[0][order], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", SHIFT_FREE)
@given(returns=RETURNS)
def test_sum_of_a_group_is_zero(name: str, returns: list[float]) -> None:
    advantages = _advantages(name, returns)[0]
    assert abs(float(advantages.sum())) < 1e-4 * (1 + float(advantages.abs().max()))


@pytest.mark.parametrize("name", sorted(set(ADVANTAGES) - {"reinforce_pp"}))
@given(groups=st.lists(RETURNS.filter(lambda r: len(r) == 4), min_size=1, max_size=4))
def test_groups_do_not_see_each_other(name: str, groups: list[list[float]]) -> None:
    together = _advantages(name, *groups)
    assert_close(together, torch.cat([_advantages(name, group) for group in groups]))
