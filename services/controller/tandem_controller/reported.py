"""A session of a run, kept for its report, which is made however it ends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from tandem.config import Config
from tandem_controller.machine import Given, beginning
from tandem_controller.pace import Pace
from tandem_controller.pages import leave_pages
from tandem_controller.run_dir import RunDir
from tandem_controller.sessions import Open, session
from tandem_controller.supervisor import Supervisor


@contextmanager
def reported(
    config: Config,
    asked: Given,
    run: RunDir,
    supervisor: Supervisor,
    pace: Pace,
    seconds: Mapping[str, float],
) -> Iterator[Open]:
    """A session that began `seconds["start"]` ago, where that is known. The body says in `how` that it finished or was
    stopped; else it has failed. `seconds`, by phase, may be filled in until it ends."""
    try:
        began = beginning(config, asked, supervisor.services.version, seconds.get("start", 0.0))
        with session(run.path, began) as told:
            told.seconds = seconds
            try:
                yield told
            finally:
                told.version = supervisor.services.version
                told.recoveries, told.problems = supervisor.recoveries.all, pace.problems
    finally:
        leave_pages(run.path)
