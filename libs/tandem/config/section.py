"""What every part of the config tree is made of."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


def _no_bool(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("Input should be a number")
    return value


LEAST_TEMPERATURE, MOST_TEMPERATURE = 0.01, 2.0  # the engine's; below, it would draw at the least one in silence
MOST = 2**31 - 1
Positive = Annotated[int, Field(ge=1, le=MOST), BeforeValidator(_no_bool)]
NonNegative = Annotated[int, Field(ge=0, le=MOST), BeforeValidator(_no_bool)]
Share = Annotated[float, Field(ge=0, le=1)]


class Section(BaseModel):
    """A frozen part of the tree that refuses keys it does not know and values of another type."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=False, allow_inf_nan=False)
