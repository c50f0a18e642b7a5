"""`tandem status` on a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tandem.types import MemberStatus, Recovery, RunStatus

QUIET_S = 10.0  # a pause that is worth a word
SHOWN = 10  # recoveries
LONGEST_NODE, SHORT_NODE = 40, 12  # characters


def print_status(console: Console, status: RunStatus, now: float) -> None:
    """What the run does, who takes part, who waits for whom, what died. `now` is in Unix seconds."""
    _say(
        console, f"{status.name}: version {status.version} of {status.steps}, {status.phase} for {ago(status.phase_s)}"
    )
    _say(console, f"running since {_when(status.started)} ({ago(now - status.started)})")
    if status.quiet_s >= QUIET_S:
        _say(console, f"nothing has progressed for {ago(status.quiet_s)}")
    _print(
        console,
        ("who", "generation", "node", "state", "since", "version", "address"),
        [_member(member, now) for member in status.members],
    )
    for title, lines in (("waiting", status.waits), ("from the next step on", status.pending)):
        if lines:
            _say(console, f"\n{title}:")
            for line in lines:
                _say(console, f"  {line}")
    if status.problems:
        _say(console, "\nlast problems:")
        for problem in status.problems:
            _say(console, f"  {_when(problem.at)} {problem.text}")
    if not status.recoveries:
        return
    shown = status.recoveries[-SHOWN:]
    count = len(status.recoveries)
    _say(console, f"\ndeaths: {count}" + (f", the last {len(shown)}:" if count > len(shown) else ""))
    for recovery in shown:
        for line in _recovery(recovery):
            _say(console, line)


def ago(seconds: float) -> str:
    """A length of time as people say it."""
    seconds = max(0.0, seconds)
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def _member(status: MemberStatus, now: float) -> tuple[str, ...]:
    who = status.member.identity
    return (
        f"{who.role.replace('_', ' ')} {who.index}",
        str(who.generation),
        short(status.member.node),
        status.state,
        ago(now - status.since),
        "" if status.version is None else str(status.version),
        status.member.address,
    )


def _recovery(recovery: Recovery) -> tuple[str, str]:
    member = recovery.death.member
    where = f" on {short(member.node)}" if member.node else ""
    again = "not served again yet" if recovery.seconds is None else f"served again after {recovery.seconds:.1f} s"
    done = f"{recovery.action}; " if recovery.action else ""
    return f"  {_when(recovery.at)} {member.identity}{where}: {recovery.death.why}", f"    {done}its place is {again}"


def short(node: str) -> str:
    """A node's name; of a long one, such as Ray's own ids, the beginning, which will do to name it."""
    return node if len(node) <= LONGEST_NODE else node[:SHORT_NODE]


def _when(at: float) -> str:
    return f"{datetime.fromtimestamp(at).astimezone():%Y-%m-%d %H:%M:%S}"


def _print(console: Console, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    console.print(table)


def _say(console: Console, line: str) -> None:
    console.print(line, highlight=False, soft_wrap=True, markup=False)
