"""CURVE: both sides of a connection prove their keys, and the service decides whether it accepts the peer's key.

ZeroMQ sends the peer's key to an address within the process (ZAP, RFC 27 of ZeroMQ). One socket per context can have
this address; without it ZeroMQ admits every key. The service answers with the public key as the name of the user.
ZeroMQ attaches this name to each message of the connection. Unix sockets use no keys: only the user can open the file.
"""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from typing import Any, Final, NamedTuple

import zmq
from zmq.utils import z85

from scaler_io.security.authorized import AuthorizedKeys
from scaler_io.security.keyring import NOBODY, Credentials, KeyFileError, KeyPair, Keyring, KeyRole, Principal
from scaler_io.transport.frame_properties import property_of
from scaler_protocol.addresses import Address

_ZAP: Final = "inproc://zeromq.zap.01"
_OTHER_MECHANISM: Final = 0x11000002
"""ZMQ_PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH of zmq.h."""
HANDSHAKE_FAILURES: Final = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
"""Events of a socket's monitor which give the reason why a handshake failed."""
_SIGNATURE: Final = b"\xff"
"""What a service of ZeroMQ says first."""
CURVE_BYTES: Final = 33
"""Bytes that encryption adds to a frame."""


def new_pair() -> KeyPair:
    """A new key pair."""
    public, secret = zmq.curve_keypair()
    return KeyPair(z85.decode(public), z85.decode(secret))


def check_pair(directory: Path, credentials: Credentials) -> None:
    """Raise KeyFileError if these credentials from a directory have a public key that is not that of their secret."""
    if zmq.curve_public(z85.encode(credentials.secret)) != z85.encode(credentials.holder.key):
        path = directory / f"{credentials.holder.role.value}.key"
        raise KeyFileError(
            f"{path}: its public and its secret key are no pair: copy the file again, or make another key"
        )


def use_credentials(connecting: zmq.Socket[bytes], credentials: Credentials | None, address: Address) -> None:
    """Have a socket prove its key and check the key of the service; without credentials it uses no keys."""
    if credentials is not None and not address.path:
        connecting.setsockopt(zmq.CURVE_SERVERKEY, credentials.server)
        connecting.setsockopt(zmq.CURVE_PUBLICKEY, credentials.holder.key)
        connecting.setsockopt(zmq.CURVE_SECRETKEY, credentials.secret)


class Gate:
    """Decides which keys may connect to a socket. No other socket of its context accepts connections."""

    def __init__(self, accepting: zmq.Socket[bytes], keys: AuthorizedKeys, roles: frozenset[KeyRole]) -> None:
        """Holders of keys with one of these `roles` may connect. Call `guard` before the socket is bound."""
        self._accepting, self._keys, self._roles = accepting, keys, roles
        self._seen: Keyring = keys.keyring
        """The keyring at the last call of `revoked`."""
        self._socket = accepting.context.socket(zmq.ROUTER)
        self._socket.linger = 0
        self._socket.bind(_ZAP)
        self.process_events()

    def guard(self, address: Address) -> None:
        """Demand keys at the address that the socket is bound to next, if it is a TCP address."""
        self._accepting.setsockopt(zmq.CURVE_SERVER, not address.path)
        if not address.path:
            self._accepting.setsockopt(zmq.CURVE_SECRETKEY, self._keys.own.secret)
        self._accepting.setsockopt(zmq.ZAP_DOMAIN, b"scaler")
        self._accepting.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)

    def fileno(self) -> int:
        """The descriptor to wait on. It becomes readable once; `process_events` re-arms it."""
        return int(self._socket.FD)

    def process_events(self) -> None:
        """Accept or refuse each connection that has proved a key."""
        while self._socket.getsockopt(zmq.EVENTS) & zmq.POLLIN:
            self._keys.reload()
            sender, empty, version, number, *request = self._socket.recv_multipart(zmq.NOBLOCK)
            user = self._user(request)
            verdict = [b"400", b"not accepted", b""] if user is None else [b"200", b"", user]
            self._socket.send_multipart([sender, empty, version, number, *verdict, b""], zmq.NOBLOCK)

    def _user(self, request: list[bytes]) -> bytes | None:
        """The key in a request, in hexadecimal; empty for this user at a Unix socket; None if the peer is not accepted.

        A request has domain, address, routing id, mechanism and, with CURVE, the key.
        """
        if request[3:4] == [b"CURVE"] and len(request) == 5:
            holder = self._keys.keyring.get(request[4])
            return holder.key.hex().encode() if holder is not None and holder.role in self._roles else None
        # The kernel says who has opened a Unix socket: localhost:UID:GID:PID.
        opener = request[1].split(b":")[1:2]
        ours = sys.platform != "win32" and opener == [str(os.getuid()).encode()]
        return b"" if ours and request[3:4] == [b"NULL"] else None

    def key_of(self, frame: Any) -> bytes | None:
        """The key that the sender of a frame has proved; None if it is no longer accepted, empty if there is no key."""
        user = property_of(frame, "User-Id")
        if user is None:  # as from a Unix socket, where the name may also be empty
            return b""
        key = bytes.fromhex(user)
        return key if not key or key in self._keys.keyring else None

    def principal(self, key: bytes) -> Principal:
        """The holder of a key that a peer has proved."""
        return self._keys.keyring.get(key, NOBODY)

    def revoked(self) -> set[bytes]:
        """Keys that were accepted at the last call, and are removed or have another role now."""
        self._keys.reload()
        before, self._seen = self._seen, self._keys.keyring
        return {key for key, holder in before.items() if self._seen.get(key) != holder}


class Control:
    """A second, silent connection to a service: whether it is greeted and kept tells why the first one has ended.

    ZeroMQ reports that a service has closed a connection during the handshake, and no more. A service with another key
    greets both, closes the first and keeps this one for a while. A proxy without its service greets neither; a service
    that ends, or is full, keeps neither, although it may greet both.
    """

    def __init__(self, stream: zmq.Socket[bytes], address: Address) -> None:
        """`stream` is a socket of the type STREAM. Call it after the first connection was begun."""
        self._stream = stream
        self._stream.connect(str(address))

    def is_kept(self) -> bool:
        """Whether a service of ZeroMQ has greeted and has not closed the connection; may be called once."""
        parts: list[bytes] = []
        while self._stream.poll(0):
            _, part = self._stream.recv_multipart(zmq.NOBLOCK)
            parts.append(part)  # an empty one when the connection is made, and when it is closed
        return b"".join(parts).startswith(_SIGNATURE) and parts[-1] != b""

    def close(self) -> None:
        """Close the connection."""
        self._stream.close(linger=0)


class HandshakeFailure(NamedTuple):
    """Why a handshake has failed, and whether this is `final`: another attempt would fail, too."""

    reason: str
    final: bool


_REMEDY: Final = (
    "give its keys (--keys, SCALER_KEYS, keys= of a Client), or say --insecure (insecure=True) if it has none"
)


def demands_keys(address: Address) -> str:
    """The error text for a peer without keys."""
    return f"the service at {address} demands keys: give --keys or SCALER_KEYS, or keys= of a Client"


def handshake_failure(
    event: int, value: int, credentials: Credentials | None, address: Address, hint: str = ""
) -> HandshakeFailure:
    """Explain an event of a socket's monitor; the reason is empty if the event says nothing about keys.

    `hint` says what the peer may have mistaken the address for.

    Most failures are not final: a service that ends during the handshake, or a proxy without its service, looks like a
    service with another key (Control tells them apart).
    """
    if credentials is None or address.path:
        differs = event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL and value == _OTHER_MECHANISM
        return HandshakeFailure(demands_keys(address) if differs else "", final=False)
    holder = credentials.holder
    if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
        text = f"the service at {address} does not accept the key {holder.name} ({holder.role.value})"
        return HandshakeFailure(f"{text}: it is not in the service's list, or was revoked", final=True)
    if event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL or (
        event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL and value == errno.EPIPE
    ):
        text = f"the service at {address} has another key than the one that the key {holder.name} was made for"
        before = f"{hint}; otherwise " if hint else ""
        return HandshakeFailure(f"{before}{text}, or uses no keys: {_REMEDY}", final=False)
    return HandshakeFailure("", final=False)
