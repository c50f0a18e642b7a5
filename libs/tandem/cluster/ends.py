"""What became of a service's process, in words: exit code, signal, out of memory; and what it printed last."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

LAST_LINES = 10
LINE_CHARS = 400  # of a line that is shown
TAIL_BYTES = 64 * 2**10
CRASH = "Fatal Python error"  # by faulthandler, which then prints the stack: its first lines say most
RAISED = re.compile(r"^(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit)\b.*")


@dataclass(frozen=True, slots=True)
class End:
    """How a hosted process ended: `why` in a few words, `last_lines` of its log, oldest first."""

    why: str
    last_lines: tuple[str, ...] = ()


def tail(path: Path) -> tuple[str, ...]:
    """The last lines of a log, cut to a sensible length; none where it cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return ()
    lines = [line.rstrip()[:LINE_CHARS] for line in text.splitlines() if line.strip()]
    crash = next((at for at, line in enumerate(lines) if line.startswith(CRASH)), None)
    return tuple(lines[-LAST_LINES:] if crash is None else lines[crash : crash + LAST_LINES])


def in_words(
    status: int, last_lines: tuple[str, ...], oom_before: Mapping[str, int], oom_after: Mapping[str, int]
) -> str:
    """Why a process ended: from its status, an exit code or minus a signal, and the counts of `oom_kills`."""
    if status == 0:
        return "ended in order (exit code 0)"
    if status > 0:
        raised = next((line for line in reversed(last_lines) if RAISED.match(line)), "")
        return f"exit code {status}" + (f" ({raised})" if raised else "")
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    grew = [place for place, count in oom_after.items() if count > oom_before.get(place, count)]
    if -status == signal.SIGKILL and grew:
        return f"out of memory: killed by the kernel ({name}; its count of such kills rose: {grew[0]})"
    return f"killed by {name}"


def oom_kills(places: Iterable[Path]) -> dict[str, int]:
    """How many processes the kernel has killed for want of memory, by where it counts."""
    counts = {}
    for path in places:
        try:
            found = re.search(r"^oom_kill (\d+)$", path.read_text(), re.MULTILINE)
        except OSError:
            continue
        if found:
            counts[str(path)] = int(found[1])
    return counts


def oom_places(pid: int) -> tuple[Path, ...]:
    """Where the kernel counts its kills: of a process's control group (version 1 or 2), then of the machine."""
    root, found = Path("/sys/fs/cgroup"), list[Path]()
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                found += [root / path.strip("/") / "memory.events"]
            elif "memory" in controllers.split(","):
                found += [root / "memory" / path.strip("/") / "memory.oom_control"]
                found += [root / "memory/memory.oom_control"]  # in a container the path is the host's
    return (*found, Path("/proc/vmstat"))
