"""Certificates of mode mtls: read, checked before anyone is met, and the role that one proves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from tandem.types import Role, UserError

CA = "ca.pem"
DOMAIN = ".tandem"
SPKI = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def server_name(role: Role) -> str:
    """The DNS name in a role's certificate, whatever machine it runs on."""
    return role.value.replace("_", "-") + DOMAIN


def role_of(peer: Mapping[str, Any]) -> Role | None:
    """The role in the certificate of a connection's other end, from gRPC's `auth_context()`; None for none or two."""
    names = peer.get("x509_subject_alternative_name", ())
    return _only_role(name.decode(errors="replace") if isinstance(name, bytes) else str(name) for name in names)


def _only_role(names: Iterable[str]) -> Role | None:
    by_name = {server_name(role): role for role in Role}
    found = {by_name[name] for name in names if name in by_name}
    return found.pop() if len(found) == 1 else None


@dataclass(frozen=True, slots=True)
class Certificate:
    """One process's certificate with its key, and the authority that it trusts: PEM."""

    ca: bytes
    chain: bytes
    key: bytes = field(repr=False)

    def for_channel(self) -> grpc.ChannelCredentials:
        """To call with."""
        return grpc.ssl_channel_credentials(self.ca, self.key, self.chain)

    def for_port(self) -> grpc.ServerCredentials:
        """To serve with: who has no certificate of the authority gets no connection."""
        return grpc.ssl_server_credentials([(self.key, self.chain)], self.ca, require_client_auth=True)


def load(folder: str, role: Role) -> Certificate:
    """Read a role's certificate.

    Raises:
        UserError: a file is missing or is none, the key is another one's, or the certificate is expired, of another
            role or authority.
    """
    path = Path(folder)
    files = [path / CA, path / f"{role.value}.pem", path / f"{role.value}.key"]
    certificate = Certificate(*(_read(file) for file in files))
    try:
        authorities = x509.load_pem_x509_certificates(certificate.ca)
        chain = x509.load_pem_x509_certificates(certificate.chain)
        key = load_pem_private_key(certificate.key, password=None)
    except (ValueError, TypeError) as problem:  # TypeError: the key has a password
        raise UserError(f"security.tls_dir {folder}: {CA}, {role}.pem or {role}.key is no PEM ({problem})") from problem
    own = chain[0]
    if key.public_key().public_bytes(*SPKI) != own.public_key().public_bytes(*SPKI):
        raise UserError(f"{files[2]}: is not the key of {files[1].name}; make both anew")
    now = datetime.now(UTC)
    if not own.not_valid_before_utc <= now <= own.not_valid_after_utc:
        when = f"{own.not_valid_before_utc:%Y-%m-%d %H:%M} to {own.not_valid_after_utc:%Y-%m-%d %H:%M} UTC"
        raise UserError(f"{files[1]}: is valid from {when}, which is not now; renew it")
    if _only_role(_names(own)) is not role:
        raise UserError(f"{files[1]}: must name {server_name(role)} and no other role; it names {_names(own)}")
    if not any(_issued(chain[-1], authority) for authority in authorities):
        raise UserError(f"{files[1]}: was not issued by {CA}; take both from one authority")
    return certificate


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as problem:
        raise UserError(
            f"security.tls_dir: {file} cannot be read ({problem.strerror}); `tandem certs DIR` makes such a folder"
        ) from problem


def _names(certificate: x509.Certificate) -> list[str]:
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return []
    return found.value.get_values_for_type(x509.DNSName)


def _issued(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True
