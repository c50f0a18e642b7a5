"""How a run fares, as a person asks for it: `tandem status`."""

from __future__ import annotations

from dataclasses import dataclass

from tandem.types.member import Death, Member


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """One member now. `state` is a word or two, such as `serving`, `joining` or `draining`; `version` is the policy
    version it serves or is at, None where it has none; `since` is when it became so, in Unix seconds."""

    member: Member
    state: str
    version: int | None
    since: float


@dataclass(frozen=True, slots=True)
class Recovery:
    """What became of a death: noticed `at` (Unix seconds), `action` was taken, and so many seconds after the death was
    noticed the place was served again. While it is not, `seconds` is None and `action` may be empty yet."""

    death: Death
    at: float
    action: str
    seconds: float | None


@dataclass(frozen=True, slots=True)
class StepFigures:
    """What a step came to: the policy version that it made, and the wall seconds of each of its phases, in order.

    The solve rate is of the episodes it played, `reward` their mean return, `eval_solve_rate` greedy on the fixed set.
    None: the step has no such figure.
    """

    version: int
    phases: tuple[tuple[str, float], ...] = ()
    episodes: int = 0
    turns: int = 0
    solve_rate: float | None = None
    reward: float | None = None
    loss: float | None = None
    eval_solve_rate: float | None = None

    @property
    def seconds(self) -> float:
        """Of the whole step."""
        return sum(seconds for _, seconds in self.phases)


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that went wrong `at` (Unix seconds), in one line of printable text."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class RunStatus:
    """A run that is running. `phase` is what it does, since `phase_s` seconds; nothing at all has progressed for
    `quiet_s`. `waits` and `pending` are lines: who waits for whom, and what takes effect at the next step. Of the step
    under way `groups` of `groups_wanted` have been played (0 of 0 where none are); `recent` are the last steps and
    `problems` what went wrong last, oldest first."""

    name: str
    run_id: str
    started: float  # Unix seconds
    version: int
    steps: int
    phase: str
    phase_s: float
    quiet_s: float
    members: tuple[MemberStatus, ...] = ()
    waits: tuple[str, ...] = ()
    pending: tuple[str, ...] = ()
    recoveries: tuple[Recovery, ...] = ()
    groups: int = 0
    groups_wanted: int = 0
    recent: tuple[StepFigures, ...] = ()
    problems: tuple[Problem, ...] = ()
