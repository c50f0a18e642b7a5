"""The short form of `make chaos`: a run is hit where it hurts, and ends in the bytes of one that was not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.schedule import Fault, Kind
from tests.chaos.settings import SETTINGS
from tests.chaos.trial import judged, tried

QUICK = (*SETTINGS, "eval.fixed=0")
FAULTS = [
    Fault(Kind.REPLICA, "generate", 0.4),
    Fault(Kind.RANK_1, "train", 0.3),
    Fault(Kind.MANAGER, "save", 0.1, soon=True),
    Fault(Kind.CONTROLLER, "sync", 0.5),
]


@pytest.mark.ray
@pytest.mark.timeout(900)
def test_a_run_that_loses_one_of_each_ends_in_the_same_bytes(tmp_path: Path) -> None:
    suffered = tried(tmp_path, None, FAULTS, QUICK)
    assert [fault.fault for fault in suffered] == FAULTS
    steps, files = judged(tmp_path, QUICK)
    assert steps > len(FAULTS)
    assert steps < files <= 2 * steps  # an adapter of each version, and the states that were saved
