"""What a process holds to prove its role, and to tell who else proves one."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from tandem.types import Role

Mode: TypeAlias = Literal["none", "token", "mtls"]
REMEDY = "set security.secret_file or security.tls_dir, or write security.insecure: true"


@dataclass(frozen=True, slots=True)
class Keys:
    """One process's own: in mode token its role's token, and sha256 (hex) by role of the tokens it lets in; in mode
    mtls the folder of its certificate. Plain values, to be handed over by a channel that is not ours to guard."""

    mode: Mode = "none"
    insecure: bool = False
    tls_dir: str = ""
    token: str = field(default="", repr=False)
    admits: Mapping[str, str] = field(default_factory=dict, repr=False)
    operator: str = field(default="", repr=False)  # a controller's that drew the secret: the token of its owner

    def holder_of(self, token: str) -> Role | None:
        """The role whose token this is, if it is let in."""
        digest, found = sha256(token), None
        for role, known in self.admits.items():  # all of them, always: how long it takes says nothing
            if hmac.compare_digest(digest, known):
                found = Role(role)
        return found


NO_KEYS = Keys()


def sha256(token: str) -> str:
    """As hex."""
    return hashlib.sha256(token.encode()).hexdigest()
