"""What a run says of itself: logs, traces, metrics. `setup` once a process; only this package knows OpenTelemetry."""

from tandem.obs.logging import get_logger
from tandem.obs.process import finish, setup
from tandem.obs.tracing import span, trace

__all__ = ["finish", "get_logger", "setup", "span", "trace"]
