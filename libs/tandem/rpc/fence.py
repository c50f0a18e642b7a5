"""Who calls and who is meant, in a call's metadata; and the fence that keeps the dead from acting late."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tandem.types import Identity, Role, StaleRequest, UserError

CALLER_KEY = "tandem-caller"
CALLEE_KEY = "tandem-callee"
SUCCEEDED = (Role.CONTROLLER, Role.LEARNER)  # one life of each at a time, all ranks of the learner being of one
FORM = re.compile(r"([a-z_]{1,32})/(\d{1,9})/(\d{1,9})")


def encode_identity(identity: Identity) -> str:
    """As it travels: role/index/generation."""
    return f"{identity.role.value}/{identity.index}/{identity.generation}"


def decode_identity(metadata: Mapping[str, str | bytes], key: str) -> Identity | None:
    """Who the metadata says under a key; None where it says nothing. Raises UserError for what is no identity."""
    said = metadata.get(key)
    if said is None:
        return None
    found = FORM.fullmatch(said) if isinstance(said, str) else None
    if found is None or found[1] not in list(Role):
        raise UserError(f"metadata {key} is no role/index/generation; install the same Tandem release on both sides")
    return Identity(Role(found[1]), int(found[2]), int(found[3]))


class Fence:
    """A server's memory of which life of a role is the newest. `me` is the process that serves.

    A process that was given up for dead and replaced may still be alive, behind a cut in the network say: what it sends
    once its successor has been heard here is refused. So is what was meant for another process than this one, whose
    address is now ours. A server that a person started alone (`me` is the operator) is nobody's successor.
    """

    def __init__(self, me: Identity) -> None:
        self.me = me
        self._newest: dict[Role, int] = {}

    def meet(self, caller: Identity, callee: Identity | None) -> None:
        """Let a call begin. Raises StaleRequest for a zombie's, and for one that is meant for another."""
        if callee is not None and callee != self.me and self.me.role is not Role.OPERATOR:
            raise StaleRequest(f"the call is meant for {callee}, but {self.me} listens here now; look up its address")
        if caller.role in SUCCEEDED:
            self._newest[caller.role] = max(caller.generation, self._newest.get(caller.role, 0))
        self.check(caller)

    def check(self, caller: Identity) -> None:
        """While a call lasts. Raises StaleRequest once a newer life of the caller has called."""
        newest = self._newest.get(caller.role, 0)
        if caller.role in SUCCEEDED and caller.generation < newest:
            raise StaleRequest(f"{caller} was replaced: generation {newest} has called here; end this process")
