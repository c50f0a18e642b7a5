"""Where each process of a run is scraped: prometheus.json in the run directory, for Prometheus's `file_sd_configs`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from tandem.obs import get_logger
from tandem.types import Member
from tandem_controller.run_dir import write_json

log = get_logger(__name__)
TARGETS_FILE = "prometheus.json"


def targets(run: str, members: Sequence[Member]) -> list[dict[str, object]]:
    """An entry for each member that is scraped."""
    return [
        {
            "targets": [member.metrics],
            "labels": {
                "run": run,
                "role": str(member.identity.role),
                "index": str(member.identity.index),
                "node": member.node,
            },
        }
        for member in members
        if member.metrics
    ]


class Targets:
    """Keeps the file as `members` says, whenever it is told to look."""

    def __init__(self, folder: Path, run: str, members: Callable[[], Sequence[Member]]) -> None:
        self._path, self._run, self._members = folder / TARGETS_FILE, run, members
        self._written: list[dict[str, object]] | None = None

    async def look(self) -> None:
        """Write who is there now, if that is news."""
        await self._write(targets(self._run, self._members()))

    async def close(self) -> None:
        """Nobody is scraped any more."""
        await self._write([])

    async def _write(self, now: list[dict[str, object]]) -> None:
        if now == self._written:
            return
        try:
            await asyncio.to_thread(write_json, self._path, now)
        except OSError as problem:  # no run ends for that; it is tried again at the next look
            log.warning(
                "%s cannot be written (%s): Prometheus does not know who is there", self._path, problem.strerror
            )
            return
        self._written = now
