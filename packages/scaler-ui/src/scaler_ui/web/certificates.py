"""The certificate and the private key of the pages."""

from __future__ import annotations

import os
import ssl
import stat
from pathlib import Path

from scaler_io.service.options import UsageError


def check_tls(certificate: Path | None, key: Path | None) -> str:
    """A warning if browsers will refuse the certificate for its dates, else "".

    Raises UsageError if only one of the files is given, or if they are no pair that can be read.
    """
    if certificate is None and key is None:
        return ""
    if certificate is None or key is None:
        raise UsageError("--tls-cert and --tls-key belong together: give both")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        for file in (certificate, key):
            if not stat.S_ISREG(os.stat(file).st_mode):  # a pipe would be waited for, and can be read once only
                raise UsageError(
                    f"--tls-cert {certificate} and --tls-key {key} cannot be used: {file} is no plain file"
                )
        # Without a password, OpenSSL would ask the terminal for one.
        server.load_cert_chain(certificate, key, password="")
    except OSError as error:  # an ssl.SSLError is one
        why = _tls_fault(error, key) if isinstance(error, ssl.SSLError) else error
        raise UsageError(f"--tls-cert {certificate} and --tls-key {key} cannot be used: {why}") from None
    refusal = _refusal(server, certificate)
    return f"browsers will refuse --tls-cert {certificate}: {refusal}" if refusal else ""


def _tls_fault(error: ssl.SSLError, key: Path) -> str:
    """What is wrong with a certificate and its key, and what to do; OpenSSL says little more than `PEM lib`."""
    if error.reason == "KEY_VALUES_MISMATCH":
        return "the key is not that of the certificate, which stands first in its file"
    if b"ENCRYPTED" in key.read_bytes():
        return "the key is encrypted; write it without a passphrase: openssl pkey -in KEY -out NEW"
    return f"one of them is no PEM file, or not whole ({error})"


def _refusal(server: ssl.SSLContext, certificate: Path) -> str:
    """Why a client that trusts the issuer refuses the certificate; "" if it does not.

    Python has no function that reads the dates of a certificate, so a client in this process shakes hands with us.
    """
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # the certificate itself is trusted, whoever has issued it
    client.load_verify_locations(certificate)
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        client.wrap_bio(to_client, to_server),
        server.wrap_bio(to_server, to_client, server_side=True),
    )
    while True:
        waiting = 0
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                waiting += 1
            except ssl.SSLCertVerificationError as error:
                return error.verify_message
            except ssl.SSLError:
                return ""  # not for what the certificate says
        if not waiting:
            return ""
