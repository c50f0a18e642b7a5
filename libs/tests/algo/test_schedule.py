"""The learning rate by policy version."""

import pytest

from tandem.algo import learning_rate


@pytest.mark.parametrize(
    ("version", "expected"),
    # 5 steps, to a tenth: each of the 4 intervals takes 0.9 / 4 = 0.225
    [(0, 1.0), (1, 0.775), (2, 0.55), (3, 0.325), (4, 0.1), (7, 0.1)],
)
def test_linear_decay(version: int, expected: float) -> None:
    rate = learning_rate(version, peak=1.0, final_share=0.1, warmup_steps=0, steps=5)
    assert rate == pytest.approx(expected)


def test_warmup_times_decay() -> None:
    rates = [learning_rate(v, peak=2.0, final_share=0.0, warmup_steps=4, steps=5) for v in range(5)]
    # decay 1, .75, .5, .25, 0 times warm-up .25, .5, .75, 1, 1, times 2
    assert rates == pytest.approx([0.5, 0.75, 0.75, 0.5, 0.0])


def test_constant_and_single_step() -> None:
    assert learning_rate(9, peak=3e-4, final_share=1.0, warmup_steps=0, steps=100) == 3e-4
    assert learning_rate(0, peak=3e-4, final_share=0.1, warmup_steps=0, steps=1) == 3e-4
