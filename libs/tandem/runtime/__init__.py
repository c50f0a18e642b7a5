"""Time, deadlines and retries: the only place in Tandem that sleeps or tries again."""

from tandem.runtime.policy import Retry, deadline
from tandem.runtime.signals import until_signal

__all__ = ["Retry", "deadline", "until_signal"]
