"""What the service starts must not outlive it: after a kill -9 of the service it would hold its memory for ever."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # prctl(2)


def die_with_parent(parent: int) -> None:
    """In a child of the process `parent`, on Linux: have the kernel kill it when the thread that started it ends.
    Elsewhere nothing."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            raise SystemExit("the service ended while its child was starting")
