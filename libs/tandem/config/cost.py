"""The section on what a run costs."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from tandem.config.section import Positive, Section

Price = Annotated[float, Field(ge=0)]


class MachineConfig(Section):
    """Machines of one type."""

    type: str = Field(min_length=1, description="Instance type, such as ml.g7e.12xlarge; for people.")
    count: Positive = Field(default=1, description="How many the run holds.")
    per_hour: Price = Field(description="Price of one for an hour.")


class CostConfig(Section):
    """Prices by which a run says what it costs: of the machines that it holds, and of the GPUs that it uses."""

    currency: str = Field(default="USD", pattern=r"^[A-Z]{3}$", description="Of all prices: ISO 4217.")
    machines: tuple[MachineConfig, ...] = Field(default=(), description="The machines, from start to end of the run.")
    per_gpu_hour: Price = Field(
        default=0, description="Price of a GPU for an hour, while the run has it; comes on top of the machines'."
    )
