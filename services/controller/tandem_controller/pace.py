"""How fast a run goes and what went wrong in it last: what `tandem top` shows of it beside its members."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tandem.types import Problem, StepFigures, TrajectoryGroup
from tandem_controller.phases import phases_of
from tandem_controller.telling import one_line

STEPS = 64  # that are remembered
PROBLEMS = 8
LOGGERS = ("tandem", "tandem_controller")


class Pace:
    """The last steps, how far the one under way is, and the last problems, each once."""

    def __init__(self, groups_wanted: int = 0, rows: Iterable[Mapping[str, Any]] = ()) -> None:
        """`rows` are those of metrics.jsonl that a resumed run has already."""
        self.groups, self.groups_wanted = 0, groups_wanted
        self._recent = deque(map(step_figures, rows), maxlen=STEPS)
        self._problems = deque[Problem](maxlen=PROBLEMS)

    @property
    def recent(self) -> tuple[StepFigures, ...]:
        """The last steps, oldest first."""
        return tuple(self._recent)

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Oldest first."""
        return tuple(self._problems)

    def group(self, group: TrajectoryGroup) -> None:
        """A group came in; those of refills are beyond what was wanted."""
        self.groups = min(self.groups_wanted, self.groups + 1)

    def step(self, row: Mapping[str, Any]) -> None:
        """A step is done."""
        self.groups = 0
        self._recent.append(step_figures(row))

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Remember what is logged as a warning, or worse, while the body runs."""
        ear = _Ear(self._problems)
        for name in LOGGERS:
            logging.getLogger(name).addHandler(ear)
        try:
            yield
        finally:
            for name in LOGGERS:
                logging.getLogger(name).removeHandler(ear)


class _Ear(logging.Handler):
    def __init__(self, heard: deque[Problem]) -> None:
        super().__init__(logging.WARNING)
        self._heard = heard

    def emit(self, record: logging.LogRecord) -> None:
        text = one_line(record.getMessage().partition("\n")[0])
        for again in [problem for problem in self._heard if problem.text == text]:
            self._heard.remove(again)
        self._heard.append(Problem(record.created, text))


def step_figures(row: Mapping[str, Any]) -> StepFigures:
    """What a row of metrics.jsonl says of its step."""
    return StepFigures(
        version=row["version"],
        phases=tuple(phases_of(row).items()),
        episodes=row.get("rollout/episodes") or row.get("data/episodes") or 0,
        turns=row.get("rollout/turns") or row.get("data/turns") or 0,
        solve_rate=row.get("rollout/solve_rate"),
        reward=row.get("rollout/return_mean"),
        loss=row.get("loss"),
        eval_solve_rate=row.get("eval_solve_rate"),
    )
