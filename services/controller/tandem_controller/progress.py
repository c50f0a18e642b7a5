"""What a person is told of each step: plain lines. On a terminal, where a table shows it all, only what went wrong."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType

from rich.console import Console

from tandem.types import TrajectoryGroup
from tandem_controller.pace import Pace
from tandem_controller.phases import phases_of
from tandem_controller.screen import drawable


class Progress:
    """Step, solve rate, time left. Use as a context manager."""

    def __init__(
        self, console: Console, steps: int, done: int, pace: Pace, also: Callable[[dict], None] = lambda row: None
    ) -> None:
        """`also` gets every row."""
        self.console = console
        self.steps = steps
        self.first = self.last = done
        self.started = time.monotonic()
        self.without_signal = 0  # steps
        self.pace, self._also = pace, also

    def __enter__(self) -> Progress:
        self.started = time.monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.without_signal > 1:
            steps = f"in {self.without_signal} of {self.last - self.first} steps"
            self._say(f"{steps} no group had a signal: nothing was learned from them")

    def group(self, group: TrajectoryGroup) -> None:
        """A group came in."""
        self.pace.group(group)

    def step(self, row: dict) -> None:
        """A step is done."""
        self.pace.step(row)
        self._also(row)
        version = self.last = row["version"]
        if not drawable(self.console):
            self._say(self._line(row))
        if row.get("rollout/groups_with_signal") == 0:
            self.without_signal += 1
            if self.without_signal == 1:  # the rest are counted at the end
                why = "the episodes of each all ended alike"
                self._say(f"step {version}: no group had a signal, {why}: nothing was learned from this step")

    def _line(self, row: dict) -> str:
        version = row["version"]
        left = (time.monotonic() - self.started) / max(1, version - self.first) * (self.steps - version)
        solved = "rollout/solve_rate" in row
        text = f"solved {row['rollout/solve_rate']:.0%} sampled" if solved else f"loss {row['loss']:.4f}"
        if "eval_solve_rate" in row:
            text += f", {row['eval_solve_rate']:.1%} greedy on the fixed set"
        phases = " ".join(f"{phase} {value:.1f}s" for phase, value in phases_of(row).items())
        return f"step {version}/{self.steps}: {text}, at most {left / 60:.1f} min left ({phases})"

    def _say(self, line: str) -> None:
        self.console.print(line, highlight=False, soft_wrap=True)
