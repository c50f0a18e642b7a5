"""What makes the keys of a run's processes: the controller's alone. An operator finds theirs in the run's folder."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tandem.config import SecurityConfig
from tandem.rpc.door import OPEN, Door
from tandem.rpc.keys import REMEDY, Keys, Mode, sha256
from tandem.types import Identity, Role, UserError

LEAST_SECRET = 32  # characters
OPERATOR_TOKEN = "operator-token"  # in the run's folder, for its owner's eyes, while a run lasts that drew its secret


@dataclass(frozen=True, slots=True)
class Keyring:
    """Makes the keys of every role of a run."""

    mode: Mode
    insecure: bool = False
    tls_dir: str = ""
    secret: bytes = field(default=b"", repr=False)
    drawn: bool = False

    def token(self, role: Role) -> str:
        """The role's token: nothing can be told from it of another's."""
        return hmac.new(self.secret, f"tandem {role.value}".encode(), hashlib.sha256).hexdigest()

    def keys(self, role: Role) -> Keys:
        """What a process of that role gets."""
        if self.mode != "token":
            return Keys(self.mode, self.insecure, self.tls_dir)
        admits = {other.value: sha256(self.token(other)) for other in Role}
        operator = self.token(Role.OPERATOR) if self.drawn and role is Role.CONTROLLER else ""
        return Keys("token", token=self.token(role), admits=admits, operator=operator)

    def door(self, me: Identity) -> Door:
        """The door of one process."""
        return Door(me, self.keys(me.role))


@contextmanager
def operable(keys: Keys, run: Path) -> Iterator[None]:
    """While the body lasts, let the owner of a run's folder call as operator, by `operator_door`, where the secret was
    drawn. Raises UserError where that cannot be written."""
    if not keys.operator:
        yield
        return
    file = run / OPERATOR_TOKEN
    partial = file.with_name(f"{file.name}.{os.getpid()}.tmp")
    try:
        partial.unlink(missing_ok=True)
        with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as handle:
            handle.write(keys.operator)
        partial.replace(file)
    except OSError as problem:
        raise UserError(f"{file}: cannot be written ({problem.strerror}); choose another run.dir") from problem
    try:
        yield
    finally:
        if _text(file) == keys.operator:  # another controller may have taken the run over
            file.unlink(missing_ok=True)


def operator_door(security: SecurityConfig, run: Path) -> Door:
    """A person's own door to the processes of the run in a folder.

    Raises:
        UserError: the secret or the token there cannot be read.
    """
    me, file = Identity(Role.OPERATOR), run / OPERATOR_TOKEN
    if security.secret_file or security.tls_dir:
        return open_keyring(security, loopback=True).door(me)
    token = _text(file)
    return Door(me, Keys("token", token=token)) if token else OPEN


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as problem:
        raise UserError(f"{file}: cannot be read ({problem}); only who started the run may operate it") from problem


def open_keyring(security: SecurityConfig, *, loopback: bool, draw: bool = True) -> Keyring:
    """The keyring of a run whose ports are on loopback, or are not.

    Without `draw` no secret is made up: other processes could not know it.

    Raises:
        UserError: the ports would be open to all, or the secret cannot be read or is too short.
    """
    mode = security.chosen(loopback=loopback)
    if mode == "token" and not security.secret_file and not draw:
        if security.mode == "token":
            raise UserError("security.mode token needs security.secret_file where a service is started alone")
        mode = "none"
    if mode == "none" and not loopback and not security.insecure:
        raise UserError(f"the ports would be open to all who can reach this machine: {REMEDY}")
    if mode == "token":
        if security.secret_file:
            return Keyring(mode, secret=_read(security.secret_file))
        return Keyring(mode, secret=secrets.token_bytes(32), drawn=True)
    return Keyring(mode, security.insecure, security.tls_dir)


def _read(file: str) -> bytes:
    try:
        secret = Path(file).read_bytes().strip()
    except OSError as problem:
        raise UserError(f"security.secret_file {file}: cannot be read ({problem.strerror})") from problem
    if len(secret) < LEAST_SECRET:
        raise UserError(
            f"security.secret_file {file}: holds {len(secret)} characters, {LEAST_SECRET} are the least; "
            "`openssl rand -hex 32` makes one"
        )
    return secret
