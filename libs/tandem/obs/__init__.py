"""Logs, metrics and traces: the only place that knows OpenTelemetry."""

from tandem.obs.logging import get_logger, setup_logging

__all__ = ["get_logger", "setup_logging"]
