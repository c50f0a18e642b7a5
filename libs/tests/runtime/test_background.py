"""Work beside the rest: a stop ends it whenever it comes."""

from __future__ import annotations

import threading
from threading import Event, Thread

from tandem.runtime import Background, poll


class Held(Background):
    """Its thread goes on from its first look at `stopping` once `go` is set."""

    def __init__(self) -> None:
        self.looked, self.go = Event(), Event()
        super().__init__("held", lambda: None)

    @property
    def stopping(self) -> bool:
        found = super().stopping
        if threading.current_thread() is self._thread:
            self.looked.set()
            self.go.wait(30)
        return found


def test_a_stop_between_the_look_and_the_work_is_not_slept_through() -> None:
    background = Held()
    background.start()
    assert background.looked.wait(30)
    stop = Thread(target=background.stop, daemon=True)
    stop.start()
    assert poll(lambda: background._wake.is_set() or None, every_s=0.01, for_s=30)
    background.go.set()
    stop.join(5)
    assert not stop.is_alive() and not background.alive


def test_a_wake_during_the_work_has_it_done_once_more() -> None:
    began, go, calls = Event(), Event(), []

    def work() -> None:
        calls.append(len(calls))
        began.set()
        go.wait(30)

    background = Background("woken", work)
    background.start()
    assert began.wait(30)
    background.wake()
    go.set()
    assert poll(lambda: len(calls) == 2 or None, every_s=0.01, for_s=30)
    background.stop()
    assert len(calls) == 2
