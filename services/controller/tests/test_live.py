"""A run at a glance: what the table says, at any width."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

import pytest
from control_runs import STATUS, STEPPED
from rich.console import Console

from tandem.types import Problem, RunStatus, StepFigures
from tandem_controller.live import seconds_left, shares, sparkline, view

NOW = 1_000_300.0


def drawn(status: RunStatus, width: int = 100, plain: bool = False) -> list[str]:
    shown = StringIO()
    Console(width=width, file=shown).print(view(status, NOW, width, plain))
    return [line.rstrip() for line in shown.getvalue().splitlines()]


def test_a_run_is_told_at_a_glance() -> None:
    assert drawn(STATUS) == [
        "run        maze  step 12 of 80  15%  about 6 min left  ━━━━──────────────────────────",
        "now        generate for 32 s, 5 of 8 groups; nothing has progressed for 12 s",
        "last step  ██████████████████▓▓▓▓▓▓▓▓▓▒▒▒",
        "           █ generate 3.0 s 60%  ▓ train 1.5 s 30%  ▒ eval 0.5 s 10%",
        "solved      50.0% ▃▅  37.5% greedy on the fixed set, step 12",
        "reward        0.5 ▁",
        "speed      12.8 episodes/s  80.0 turns/s  5.0 s a step",
        "rollout    1 serving v12",
        "learner    1 training for 3 min, 0 training for 3 min v12",
        "store      0 serving",
        "waiting    controller waits for rollout 1 (generation 3): Rollout v12, for 31 s",
        "next step  3 rollout replicas",
        "problems   13:49:10 rollout 1 (generation 2) died: killed by SIGKILL",
    ]


def test_a_run_that_has_just_begun_and_one_that_learns_from_demonstrations() -> None:
    begun = replace(STATUS, version=0, phase="evaluation before", phase_s=0.4, quiet_s=0.0, recent=(), problems=())
    begun = replace(begun, members=(), waits=(), pending=())
    assert drawn(begun) == [
        "run        maze  step 0 of 80  0%  ──────────────────────────────",
        "now        evaluation before for 0 s",
    ]
    tuned = replace(begun, recent=(StepFigures(1, (("data", 1.0), ("train", 3.0)), 32, 64, loss=2.5),))
    assert [line for line in drawn(tuned) if line.startswith(("loss", "solved", "speed"))] == [
        "loss          2.5 ▁",
        "speed      8.0 episodes/s  16.0 turns/s  4.0 s a step",
    ]


@pytest.mark.parametrize("width", [1, 11, 30, 59, 60, 80, 200])
@pytest.mark.parametrize("plain", [True, False])
def test_no_line_is_wider_than_the_terminal_nor_wraps(width: int, plain: bool) -> None:
    problem = Problem(1.0, "[bold]" + "é" * 500)
    lines = drawn(replace(STEPPED, name="n" * 70, problems=(problem,)), width, plain)
    assert len(lines) == (12 if width >= 60 else 11)
    assert max(map(len, lines)) <= width
    assert plain is all(line.isascii() for line in lines if "é" not in line) or width < 12
    if width == 200:
        assert "[bold]" in lines[-1], "what others wrote is no markup"


def test_members_are_told_together_and_apart() -> None:
    rank = STATUS.members[2]
    ranks = tuple(
        replace(rank, member=replace(rank.member, identity=replace(rank.member.identity, index=index)), state=state)
        for index, state in enumerate(["serving"] * 3 + ["joining", "serving"])
    )
    assert drawn(replace(STATUS, members=ranks))[7] == "learner    3 joining for 3 min, 0-2,4 serving"


def test_without_colours_phases_still_differ() -> None:
    shown = StringIO()
    Console(width=100, force_terminal=True, no_color=True, file=shown).print(view(STATUS, NOW, 100))
    text = shown.getvalue()
    assert "\x1b[1mrun " in text and "\x1b[3" not in text
    assert all(block in text for block in "█▓▒")


def test_sparks_and_shares() -> None:
    assert sparkline([0, 0.5, 1, None, -9, 9], 0, 1) == "▁▅█ ▁█"
    assert sparkline([3, 3], 3, 3, plain=True) == "__"
    assert shares([3, 1.5, 0.5], 10) == [6, 3, 1]
    assert shares([1, 1, 1], 10) == [4, 3, 3] and shares([0, 0], 9) == [0, 0] and shares([], 9) == []


def test_time_left_is_by_the_last_steps() -> None:
    assert seconds_left(STATUS) == 68 * 5.0
    assert seconds_left(replace(STATUS, recent=())) is None
    assert seconds_left(replace(STATUS, version=80)) == 0
