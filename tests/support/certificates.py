"""Certificates for loopback addresses."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID


def write_certificate(
    folder: Path, password: bytes | None = None, *, begins: datetime.timedelta = -datetime.timedelta(hours=1)
) -> tuple[Path, Path]:
    """A certificate of 127.0.0.1 that signs itself, and its private key, encrypted if there is a password.

    It is valid for a day, which begins after this time from now.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.timezone.utc)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    first = now + begins
    builder = builder.not_valid_before(first).not_valid_after(first + datetime.timedelta(days=1))
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    certificate = builder.add_extension(names, critical=False).sign(key, hashes.SHA256())
    encryption: KeySerializationEncryption = BestAvailableEncryption(password) if password else NoEncryption()
    paths = folder / "cert.pem", folder / "key.pem"
    paths[0].write_bytes(certificate.public_bytes(Encoding.PEM))
    paths[1].write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption))
    return paths
