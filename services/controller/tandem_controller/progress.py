"""What a person sees while it runs: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from tandem.types import TrajectoryGroup
from tandem_controller.phases import phases_of


class Progress:
    """Step, solve rate, time left. Use as a context manager."""

    def __init__(self, console: Console, steps: int, done: int, groups_per_step: int) -> None:
        self.console = console
        self.steps = steps
        self.first = done
        self.started = time.monotonic()
        self.groups = 0
        self.without_signal = 0  # steps
        self.groups_per_step = groups_per_step
        columns = (
            TextColumn("training"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
        )
        self.bar = Bar(*columns, console=console, disable=not console.is_terminal, transient=True)
        self.task = self.bar.add_task("", total=steps, completed=done)
        self.last = done

    def __enter__(self) -> Progress:
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()
        if self.without_signal > 1:
            steps = f"in {self.without_signal} of {self.last - self.first} steps"
            self._say(f"{steps} no group had a signal: nothing was learned from them")

    def group(self, group: TrajectoryGroup) -> None:
        """A group came in: move the bar within the step; refills no longer do."""
        self.groups += 1
        if self.groups <= self.groups_per_step:
            self.bar.update(self.task, advance=0.9 / self.groups_per_step)

    def step(self, row: dict) -> None:
        """A step is done."""
        version = self.last = row["version"]
        self.groups = 0
        left = (time.monotonic() - self.started) / max(1, version - self.first) * (self.steps - version)
        solved = "rollout/solve_rate" in row
        text = f"solved {row['rollout/solve_rate']:.0%} sampled" if solved else f"loss {row['loss']:.4f}"
        if "eval_solve_rate" in row:
            text += f", {row['eval_solve_rate']:.1%} greedy on the fixed set"
        text += f", at most {left / 60:.1f} min left"
        self.bar.update(self.task, completed=version, description=text)
        if not self.console.is_terminal:
            phases = " ".join(f"{phase} {value:.1f}s" for phase, value in phases_of(row).items())
            self._say(f"step {version}/{self.steps}: {text} ({phases})")
        if row.get("rollout/groups_with_signal") == 0:
            self.without_signal += 1
            if self.without_signal == 1:  # the rest are counted at the end
                why = "the episodes of each all ended alike"
                self._say(f"step {version}: no group had a signal, {why}: nothing was learned from this step")

    def _say(self, line: str) -> None:
        self.console.print(line, highlight=False, soft_wrap=True)
