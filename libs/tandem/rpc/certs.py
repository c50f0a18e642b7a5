"""`tandem certs DIR`: an authority of one's own and a certificate for each role, for who has no other."""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tandem.rpc.certificates import CA, server_name
from tandem.types import Role, UserError

CA_KEY = "ca.key"
CA_DAYS = 3650
CLOCKS_DIFFER = timedelta(minutes=5)
Key = ec.EllipticCurvePrivateKey


def certs(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder for ca.pem, ca.key, ROLE.pem and ROLE.key.")],
    days: Annotated[int, typer.Option(min=1, max=CA_DAYS, help="How long the roles' certificates are valid.")] = 365,
) -> None:
    """Make the certificates of security.mode mtls. With an authority in DIR already, its roles get new ones."""
    make_certificates(folder, timedelta(days=days))
    sys.stdout.write(
        f"{folder}: give each machine ca.pem and the .pem and .key of the roles that run there, as security.tls_dir; "
        f"keep {CA_KEY} elsewhere\n"
    )


def make_certificates(folder: Path, valid: timedelta) -> None:
    """Write the files. Raises UserError where that cannot be, or the authority there lacks a part."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        authority, key = _authority(folder)
        for role in Role:
            own = ec.generate_private_key(ec.SECP256R1())
            certificate = issue(role, own.public_key(), valid, authority, key)
            _write(folder / f"{role.value}.key", _pem(own), 0o600)
            _write(folder / f"{role.value}.pem", certificate.public_bytes(Encoding.PEM), 0o644)
    except (OSError, ValueError, TypeError) as problem:
        raise UserError(f"{folder}: no certificates can be made there ({problem})") from problem


def _authority(folder: Path) -> tuple[x509.Certificate, Key]:
    files = folder / CA, folder / CA_KEY
    if any(file.exists() for file in files):
        if missing := [file for file in files if not file.exists()]:
            raise UserError(f"{missing[0]}: is missing beside the other; without it this authority can issue nothing")
        found = load_pem_private_key(files[1].read_bytes(), password=None)
        if not isinstance(found, Key):
            raise UserError(f"{files[1]}: is not of `tandem certs`; issue the roles' certificates by what made it")
        return x509.load_pem_x509_certificate(files[0].read_bytes()), found
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder("authority", key.public_key(), timedelta(days=CA_DAYS), _name("authority"))
    certificate = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True).sign(
        key, hashes.SHA256()
    )
    _write(files[1], _pem(key), 0o600)
    _write(files[0], certificate.public_bytes(Encoding.PEM), 0o644)
    return certificate, key


def issue(
    role: Role, public: ec.EllipticCurvePublicKey, valid: timedelta, authority: x509.Certificate, key: Key
) -> x509.Certificate:
    """A role's certificate, good for both ends of a connection."""
    usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    return (
        _builder(role.value, public, valid, authority.subject)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(server_name(role))]), critical=False)
        .add_extension(usage, critical=False)
        .sign(key, hashes.SHA256())
    )


def _builder(
    name: str, public: ec.EllipticCurvePublicKey, valid: timedelta, issuer: x509.Name
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + min(-CLOCKS_DIFFER, valid - CLOCKS_DIFFER))
        .not_valid_after(now + valid)
    )


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"tandem {name}")])


def _pem(key: Key) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _write(file: Path, data: bytes, mode: int) -> None:
    """A private file is private before it holds anything."""
    file.unlink(missing_ok=True)
    with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as handle:
        handle.write(data)
