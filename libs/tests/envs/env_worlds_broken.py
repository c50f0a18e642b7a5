"""A module with a mistake, as a user's own may have."""

MINE = numpi.zeros(3)  # type: ignore[name-defined]  # noqa: F821
