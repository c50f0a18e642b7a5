"""Logging: one line per event, for a console or as JSON."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

from tandem.config import ObsConfig


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time (UTC, ISO 8601), level, service, logger, message, and the traceback if any."""

    def __init__(self, service: str) -> None:
        super().__init__()
        self.service = service

    def format(self, record: logging.LogRecord) -> str:
        """Render one record."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "service": self.service,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


def get_logger(name: str) -> logging.Logger:
    """The logger of a module; always below the `tandem` root so that `setup_logging` rules it."""
    return logging.getLogger(name if name.startswith("tandem") else f"tandem.{name}")


def setup_logging(config: ObsConfig, service: str) -> None:
    """Send Tandem's log lines to stderr in the configured format and level. Call once per process."""
    handler = logging.StreamHandler(sys.stderr)
    console = logging.Formatter(f"%(asctime)s %(levelname).1s {service}: %(message)s", "%H:%M:%S")
    handler.setFormatter(JsonFormatter(service) if config.log_format == "json" else console)
    for root in ("tandem", "tandem_rollout", "tandem_learner", "tandem_checkpoint_manager", "tandem_controller"):
        logger = logging.getLogger(root)
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(config.log_level.upper())
