"""vLLM's own process must not outlive the service: after a kill -9 of the service it would hold its memory for ever."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # prctl(2)


def die_with_parent() -> None:
    """In a child process on Linux: have the kernel kill it when the thread that started it ends. Elsewhere nothing."""
    parent = multiprocessing.parent_process()
    if sys.platform == "linux" and parent is not None:
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent.pid:
            raise SystemExit("the service ended while its engine was starting")
