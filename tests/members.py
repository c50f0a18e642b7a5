"""Members without a deployment."""

from __future__ import annotations

from collections.abc import Sequence

from tandem.types import Identity, Member, Role


def numbered(addresses: Sequence[str]) -> tuple[Member, ...]:
    """Replicas at these addresses, each in its first life."""
    return tuple(Member(Identity(Role.ROLLOUT, index, 1), address) for index, address in enumerate(addresses))
