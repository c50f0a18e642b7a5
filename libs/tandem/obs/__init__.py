"""What a run says of itself: logging here, metrics and traces when they come."""

from tandem.obs.logging import get_logger, setup_logging

__all__ = ["get_logger", "setup_logging"]
