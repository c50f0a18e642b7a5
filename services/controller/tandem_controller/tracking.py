"""Trackers of experiments: what a run measures goes to those that the recipe names, each on a thread of its own.

    rows -> bounded queue -> thread -> Tracker

One that fails or hangs loses its own rows, says so in one line, and changes nothing else.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from queue import Full, Queue
from threading import Thread
from typing import Any, Protocol

from tandem.config import Config
from tandem.obs import get_logger
from tandem.types import UserError
from tandem_controller.outcomes import Evaluation, rows
from tandem_controller.run_dir import RunDir
from tandem_controller.sessions import Open
from tandem_controller.tables import label
from tandem_controller.telling import one_line
from tandem_controller.trackers import MlflowTracker, TensorBoardTracker, WandbTracker

log = get_logger(__name__)
LONGEST = 1000  # rows that wait for a tracker
MODULES = {"tensorboard": "tensorboardX", "wandb": "wandb", "mlflow": "mlflow"}
NEVER = frozenset({"version", "time"})


@dataclass(frozen=True, slots=True)
class Tracked:
    """A run as trackers know it: `run_id` is its own and survives a resume, which goes on from `version`; `settings`
    are by dotted key."""

    name: str
    run_id: str
    folder: Path
    version: int
    settings: Mapping[str, Any]


class Tracker(Protocol):
    """What a tracker does. Any of it may raise anything, and take any time."""

    def start(self, run: Tracked) -> None:
        """Begin a run, or go on with the one of that id."""
        ...

    def log(self, step: int, row: Mapping[str, float]) -> None:
        """Figures of a step."""
        ...

    def finish(self, summary: Mapping[str, str | float]) -> None:
        """The session is over; `summary["state"]` is finished, stopped or failed."""
        ...


class Courier:
    """Brings what there is to tell to one tracker."""

    def __init__(self, kind: str, tracker: Tracker, run: Tracked, longest: int = LONGEST) -> None:
        self._kind = kind
        self._queue: Queue[Callable[[], None] | None] = Queue(longest)
        self._tracker, self._told = tracker, False
        self._thread = Thread(target=self._work, args=(run,), name=f"tracker {kind}", daemon=True)
        self._thread.start()

    def log(self, step: int, row: Mapping[str, float]) -> None:
        """At once: what finds the queue full is lost."""
        self._put(lambda: self._tracker.log(step, row))

    def finish(self, summary: Mapping[str, str | float]) -> None:
        """Nothing comes after it."""
        self._put(lambda: self._tracker.finish(summary))
        self._put(None)

    def wait(self, for_s: float) -> None:
        """Until all is told, but no longer."""
        self._thread.join(for_s)
        if self._thread.is_alive():
            self._warn(f"is not done after {for_s:g} s and is left alone")

    def _put(self, call: Callable[[], None] | None) -> None:
        if not self._thread.is_alive():
            return  # it could not even start
        try:
            self._queue.put_nowait(call)
        except Full:
            self._warn("is too slow; rows are left out")

    def _work(self, run: Tracked) -> None:
        if not self._try(lambda: self._tracker.start(run)):
            return
        for call in iter(self._queue.get, None):
            self._try(call)

    def _try(self, call: Callable[[], None]) -> bool:
        try:
            call()
        except Exception as problem:  # noqa: BLE001 - other people's code, which must not end the run
            self._warn(one_line(f"{type(problem).__name__}: {problem}"))
            return False
        return True

    def _warn(self, what: str) -> None:
        if not self._told:
            self._told = True
            log.warning("tracker %s: %s; the run goes on without, metrics.jsonl has all", self._kind, what)


class Tracking:
    """All trackers of a run."""

    def __init__(self, couriers: tuple[Courier, ...]) -> None:
        self.couriers = couriers

    def step(self, row: Mapping[str, Any]) -> None:
        """A row of metrics.jsonl."""
        self._log(row["version"], {name: value for name, value in row.items() if name not in NEVER})

    def evaluation(self, evaluation: Evaluation | None) -> None:
        """Solve rates by suite, at the version that was evaluated."""
        if evaluation:
            rates = {f"eval/{label(suite, alone=True)}": found.rate for suite, found in rows(evaluation.results)}
            self._log(evaluation.version, rates)

    def _log(self, step: int, row: Mapping[str, Any]) -> None:
        figures = {name: float(v) for name, v in row.items() if isinstance(v, int | float) and math.isfinite(v)}
        for courier in self.couriers:
            courier.log(step, figures)


def check_trackers(config: Config) -> None:
    """Raise UserError where a tracker that the recipe names is not installed."""
    for kind in config.trackers.kinds:
        if find_spec(MODULES[kind]) is None:
            raise UserError(
                f"trackers.kinds: {kind} needs {MODULES[kind]}, which is not installed; "
                f"pip install 'tandem-controller[{kind}]', or take it out of trackers.kinds"
            )


@asynccontextmanager
async def tracked(config: Config, run: RunDir, version: int, told: Open) -> AsyncIterator[Tracking]:
    """The trackers that the recipe names, for a session that goes on from `version`; `told` says how it ends."""
    about = Tracked(config.run.name, run.facts["run_id"], run.path, version, flat(config.model_dump(mode="json")))
    tracking = Tracking(tuple(Courier(kind, _made(kind, config), about) for kind in config.trackers.kinds))
    try:
        yield tracking
    finally:
        for courier in tracking.couriers:
            courier.finish({"state": told.how})
        waits = (asyncio.to_thread(courier.wait, config.trackers.finish_s) for courier in tracking.couriers)
        await asyncio.gather(*waits)


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Settings by dotted key."""
    found: dict[str, Any] = {}
    for name, value in tree.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return found


def _made(kind: str, config: Config) -> Tracker:
    options = config.trackers
    if kind == "tensorboard":
        return TensorBoardTracker(options.tensorboard_dir)
    if kind == "wandb":
        return WandbTracker(options.project, options.wandb_entity, options.wandb_mode)
    return MlflowTracker(options.project, options.mlflow_uri, str(Path(config.run.dir).resolve() / "mlflow.db"))
