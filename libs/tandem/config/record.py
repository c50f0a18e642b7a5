"""The section on what a run records of its episodes."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from tandem.config.section import Section, Share


class RecordConfig(Section):
    """Episodes kept in the run directory, for `tandem view` and for imitation. That they cannot be kept ends no run."""

    share: Share = Field(
        default=1.0, description="Share of the groups played in training that is kept, whole groups by seed; 0: none."
    )
    evaluations: bool = Field(default=True, description="Keep the episodes of evaluations, before, during and after.")
    max_gib: Annotated[float, Field(gt=0)] = Field(
        default=20,
        description="Bound of the training episodes kept. Beyond it steps are thinned, every second one of the older "
        "half first; their figures stay.",
    )
