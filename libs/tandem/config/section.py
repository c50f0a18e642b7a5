"""What every part of the config tree is made of."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

LEAST_TEMPERATURE, MOST_TEMPERATURE = 0.01, 2.0  # the engine's; below, it would draw at the least one in silence
MOST = 2**31 - 1
Positive = Annotated[int, Field(ge=1, le=MOST)]
NonNegative = Annotated[int, Field(ge=0, le=MOST)]
Share = Annotated[float, Field(ge=0, le=1)]


class Section(BaseModel):
    """A frozen part of the tree that refuses keys it does not know and values of another type."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=False, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _is_what_it_looks_like(cls, value: object, info: ValidationInfo) -> object:
        """True is no 1, and no path or name holds a NUL: YAML can write both."""
        if isinstance(value, bool) and cls.model_fields[str(info.field_name)].annotation is not bool:
            raise ValueError("true and false are no values of this key")
        if isinstance(value, str) and "\0" in value:
            raise ValueError("text must not hold a NUL character")
        return value
