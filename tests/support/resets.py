"""Peers that reset their connections while their messages wait, which must not end the service."""

from __future__ import annotations

import contextlib
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from support.gates import SECONDS
from support.intruders import GREETING, zmtp_command, zmtp_message

RESETS = 10
WAITING = 200
"""Messages of each peer that the service has not read at the reset."""
LIFE_TENTHS = 3
"""Time to live of a silent peer, in tenths of a second: several heartbeats of the services here."""


def ping(life_tenths: int = 0) -> bytes:
    """A heartbeat of ZeroMQ, after which the peer is dead if it says nothing for `life_tenths` of a second."""
    return zmtp_command(b"PING", struct.pack(">H", life_tenths))


@contextmanager
def shaken_hands(port: int, kind: bytes = b"DEALER") -> Iterator[socket.socket]:
    """A connection of a socket of this kind."""
    with socket.create_connection(("127.0.0.1", port), timeout=SECONDS) as connected:
        connected.sendall(GREETING)
        connected.sendall(zmtp_command(b"READY", b"\x0bSocket-Type" + struct.pack(">I", len(kind)) + kind))
        received = b""
        while b"READY" not in received:
            received += connected.recv(4096)
        yield connected


def reset_while_messages_wait(port: int, kind: bytes, message: bytes) -> None:
    """Send messages and heartbeats from several peers, reset their connections, and let some heartbeats become due."""
    messages = zmtp_message([message]) * (WAITING // 2)
    with contextlib.ExitStack() as stack:
        peers = [stack.enter_context(shaken_hands(port, kind)) for _ in range(RESETS)]
        for peer in peers:
            peer.sendall(2 * (messages + ping()))
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        wait_for_the_end_of_a_silent_peer(port, kind)  # what was sent has arrived
    wait_for_the_end_of_a_silent_peer(port, kind)


def wait_for_the_end_of_a_silent_peer(port: int, kind: bytes = b"DEALER") -> None:
    """Be silent for longer than the time to live that was announced; the service closes the connection then."""
    with shaken_hands(port, kind) as silent:
        silent.sendall(ping(LIFE_TENTHS))
        with contextlib.suppress(ConnectionResetError):
            while silent.recv(4096):
                pass


@contextmanager
def service(program: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A process that runs this program."""
    with subprocess.Popen(
        [sys.executable, "-c", program, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()
