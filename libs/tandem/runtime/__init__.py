"""Deadlines and signals: the only place in Tandem that may sleep or try again."""

from tandem.runtime.policy import deadline, together
from tandem.runtime.signals import until_signal

__all__ = ["deadline", "together", "until_signal"]
