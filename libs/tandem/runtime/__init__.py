"""Deadlines, signals and injected faults: the only place in Tandem that may sleep, try again or end a process."""

from tandem.runtime.background import Background, poll
from tandem.runtime.ending import end_process
from tandem.runtime.faults import reach
from tandem.runtime.parent import adopt, end_children, end_with_parent
from tandem.runtime.policy import beside, deadline, in_threads, later, pause, to_its_end, together, until
from tandem.runtime.signals import until_signal
from tandem.runtime.trying import retry
from tandem.runtime.waits import WAITS, Wait, Waits

__all__ = [
    "WAITS",
    "Background",
    "Wait",
    "Waits",
    "adopt",
    "beside",
    "deadline",
    "end_children",
    "end_process",
    "end_with_parent",
    "in_threads",
    "later",
    "pause",
    "poll",
    "reach",
    "retry",
    "to_its_end",
    "together",
    "until",
    "until_signal",
]
