"""Each effect of TANDEM_FAULT, in a process that it may end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tandem.runtime.faults import POINTS, VARIABLE, reach

POINT, OTHER = "manager/publish/visible", "manager/publish/pointed"
CODE = """
import sys
from tandem.runtime import reach
from tandem.types import UserError
try:
    for number, point in enumerate(sys.argv[1:], start=1):
        print(number, flush=True)
        reach(point)
except (UserError, ValueError) as problem:
    sys.exit(f"{type(problem).__name__}: {problem}")
"""


def child(fault: str, *points: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, VARIABLE: fault}
    arguments = [sys.executable, "-c", CODE, *points]
    return subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=60)


def test_without_a_fault_nothing_happens() -> None:
    done = child("", POINT, OTHER)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n2\n", "")


def test_the_process_ends_at_the_point_and_at_no_other() -> None:
    done = child(POINT, OTHER, POINT, OTHER)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "1\n2\n")


def test_the_nth_time_is_counted_per_point() -> None:
    done = child(f"{POINT}@2", POINT, OTHER, OTHER, POINT, POINT)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "1\n2\n3\n4\n")
    assert child(f"{POINT}@3", POINT, POINT).returncode == 0


@pytest.mark.parametrize("fault", ["no/such/point", f"{POINT}@0", f"{POINT}@", f"{POINT}@two"])
def test_a_fault_that_cannot_be_is_refused_in_one_line(fault: str) -> None:
    done = child(fault, POINT)
    assert done.returncode == 1 and done.stderr.startswith(f"UserError: {VARIABLE}={fault}: ")
    assert done.stderr.count("\n") == 1


def test_a_point_that_is_not_registered_is_an_error() -> None:
    with pytest.raises(ValueError, match="'manager/no' is no fault point"):
        reach("manager/no")
    assert all(reach(point) is None for point in POINTS)
