"""Logging: one line per event, for a console or as JSON; a warning that comes again and again is counted."""

from __future__ import annotations

import json
import logging
import sys
import time
from contextlib import nullcontext
from contextvars import Context
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TextIO

from tandem.config import ObsConfig
from tandem.obs import tracing

WINDOW_S = 60.0  # in which the same warning is told once
REMEMBERED = 1000  # different ones
ROOTS = ("tandem", "tandem_rollout", "tandem_learner", "tandem_checkpoint_manager", "tandem_controller")


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time (UTC, ISO 8601), level, service, run, where known step, version, trace_id and
    span_id, then logger, message, and the traceback if any."""

    def __init__(self, service: str, run: str = "") -> None:
        super().__init__()
        self.service, self.run = service, run

    def format(self, record: logging.LogRecord) -> str:
        """Render one record."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "service": self.service,
            "run": self.run,
            **tracing.here(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


class ConsoleFormatter(logging.Formatter):
    """Time, level, service, message; of a warning or worse also the step, and its trace where there is one."""

    def __init__(self, service: str) -> None:
        super().__init__(f"%(asctime)s %(levelname).1s {service}: %(message)s", "%H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The first line, and those of the message."""
        text = super().formatMessage(record)
        if record.levelno < logging.WARNING:
            return text
        known = tracing.here()
        said = [f"{name} {known[key]}" for name, key in (("step", "step"), ("trace", "trace_id")) if key in known]
        return f"{text} ({', '.join(said)})" if said else text


@dataclass(slots=True)
class _Told:
    record: logging.LogRecord
    since: float
    more: int = 0


class OnceHandler(logging.StreamHandler[TextIO]):
    """Writes lines. Of warnings and worse that say the same within `WINDOW_S` the first is written at once, and how
    many more there were once that time is over: with the next line, or at the end of the process."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._told: dict[tuple[str, str], _Told] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Write it, or count it. Under the handler's lock, as all of this."""
        now = time.monotonic()
        self._sum_up(now - WINDOW_S)
        if record.levelno >= logging.WARNING:
            key = (record.name, record.getMessage())
            if told := self._told.get(key):
                told.more += 1
                return
            self._told[key] = _Told(record, now)
            if len(self._told) > REMEMBERED:
                self._sum_up(now - WINDOW_S, least=1)
        super().emit(record)

    def close(self) -> None:
        """Tell what was only counted."""
        with self.lock or nullcontext():
            self._sum_up(float("inf"))
        super().close()

    def _sum_up(self, until: float, least: int = 0) -> None:
        """Of those first told before `until`, and of so many in any case; the oldest come first."""
        for key, told in list(self._told.items()):
            if told.since > until and least <= 0:
                return
            least -= 1
            del self._told[key]
            if told.more:
                again = logging.makeLogRecord({**told.record.__dict__, "created": time.time(), "exc_info": None})
                again.msg = f"{told.record.getMessage()} ({told.more} more times since)"
                again.args, again.exc_text = None, None
                Context().run(super().emit, again)  # it is of no trace


def get_logger(name: str) -> logging.Logger:
    """The logger of a module; always below the `tandem` root so that `setup` rules it."""
    return logging.getLogger(name if name.startswith("tandem") else f"tandem.{name}")


def setup_logging(config: ObsConfig, service: str, run: str = "") -> None:
    """Send Tandem's log lines to stderr in the configured format and level. Call once per process."""
    handler = OnceHandler(sys.stderr)
    json_lines = config.log_format == "json"
    handler.setFormatter(JsonFormatter(service, run) if json_lines else ConsoleFormatter(service))
    for root in ROOTS:
        logger = logging.getLogger(root)
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(config.log_level.upper())
