"""Time, deadlines and retries: the only place in Tandem that sleeps or tries again."""

from tandem.runtime.policy import Retry, deadline, together
from tandem.runtime.signals import until_signal

__all__ = ["Retry", "deadline", "together", "until_signal"]
