"""What the loop notes of a step, one that fails too."""

import pytest

from tandem_controller.loop import Stopwatch
from tandem_controller.main import timed


def test_a_phase_that_fails_has_taken_its_time_too() -> None:
    watch, seconds = Stopwatch(), dict[str, float]()
    with pytest.raises(ZeroDivisionError), timed(seconds, "training"), watch.phase("train"):
        raise ZeroDivisionError
    assert set(watch.seconds) == {"train"}
    assert set(seconds) == {"training"}
