"""What a person is told while a run goes on."""

from io import StringIO

import pytest
from rich.console import Console

from tandem_controller.pace import Pace
from tandem_controller.progress import Progress

WARNING = "no group had a signal"


def row(version: int, signal: int) -> dict:
    return {"version": version, "rollout/solve_rate": 0.0, "rollout/groups_with_signal": signal}


@pytest.mark.parametrize("terminal", [True, False])
def test_steps_that_learn_nothing_are_told_once_and_counted(terminal: bool) -> None:
    heard = StringIO()
    with Progress(Console(file=heard, force_terminal=terminal, width=200), 4, 0, Pace(2)) as progress:
        progress.step(row(1, 2))
        assert WARNING not in heard.getvalue()
        for version in (2, 3, 4):
            progress.step(row(version, 0))
        assert heard.getvalue().count(WARNING) == 1
        assert "step 2: no group had a signal" in heard.getvalue()
    assert heard.getvalue().count(WARNING) == 2
    assert "in 3 of 4 steps no group had a signal" in heard.getvalue()


def test_fine_tuning_has_no_groups_and_one_such_step_no_count() -> None:
    heard = StringIO()
    with Progress(Console(file=heard), 2, 0, Pace(2)) as progress:
        progress.step({"version": 1, "loss": 0.5})
        assert WARNING not in heard.getvalue()
        progress.step(row(2, 0))
    assert heard.getvalue().count(WARNING) == 1
