"""The controller's own port, by which a person sees how a run fares and changes it while it runs."""

from __future__ import annotations

from typing import Protocol

from tandem.types import RunStatus


class Controls(Protocol):
    """What the port does with a run."""

    def status(self) -> RunStatus:
        """How it fares now. Quick: it asks nobody."""
        ...

    async def scale(self, *, rollout: int | None = None, learner: int | None = None) -> None:
        """So many rollout replicas and learner ranks from the next step on; None leaves them as they are.

        Raises:
            UserError: it cannot be.
        """
        ...

    async def drain(self, node: str, why: str) -> None:
        """Take everything off a node in order and place nothing new there; saves at once. Again is harmless.

        Raises:
            UserError: nothing of the run is there.
        """
        ...
