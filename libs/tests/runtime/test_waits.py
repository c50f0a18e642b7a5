"""Who waits for whom, by a clock that is passed in."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tandem.runtime import Waits
from tandem.types import Role


class Clock:
    """Seconds, as the test sets them."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_what_is_waited_for_is_known_as_long_as_it_is() -> None:
    clock = Clock()
    waits = Waits(clock)
    with waits.on("learner 0", "TrainStep v12", Role.LEARNER, "h:1"):
        clock.now += 30
        with waits.on("checkpoint manager", "Publish v11"):
            clock.now += 5.4
            assert waits.lines() == (
                "learner 0: TrainStep v12, for 35 s",
                "checkpoint manager: Publish v11, for 5 s",
            )
            first, second = waits.now()
            assert (first.role, first.address, second.role, second.address) == (Role.LEARNER, "h:1", None, "")
        assert [wait.whom for wait in waits.now()] == ["learner 0"]
    assert waits.now() == ()


def test_an_end_and_each_part_are_progress_a_failure_is_none() -> None:
    clock = Clock()
    waits = Waits(clock)
    clock.now += 50
    with pytest.raises(ValueError), waits.on("a", "b"):
        raise ValueError
    assert waits.quiet_s == 50 and waits.now() == ()
    with waits.on("a", "b") as moved:
        clock.now += 10
        moved()
        assert waits.quiet_s == 0 and waits.lines() == ("a: b, for 0 s",)
        clock.now += 7
        assert waits.quiet_s == 7 and waits.lines() == ("a: b, for 7 s",)
    assert waits.quiet_s == 0
    clock.now += 3
    before = waits.work
    waits.progressed()
    assert (waits.quiet_s, waits.moved) == (0, clock.now) and waits.work != before


def test_threads_wait_side_by_side() -> None:
    waits = Waits()

    def wait(number: int) -> int:
        for _ in range(200):
            with waits.on(f"{number}", "x"):
                assert f"{number}" in [found.whom for found in waits.now()]
        return number

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(wait, range(4))) == [0, 1, 2, 3]
    assert waits.now() == ()
