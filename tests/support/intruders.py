"""Peers that send invalid input to a port: random bytes, other protocols, and our messages at the wrong time."""

from __future__ import annotations

import random
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from scaler_io.links.streams import HEADER, join
from scaler_protocol.codec import encode
from scaler_protocol.handshake import (
    Acknowledge,
    Goodbye,
    Heartbeat,
    Hello,
    NeedHello,
    Refused,
    Role,
    ServiceKind,
    Welcome,
)
from scaler_protocol.ids import new_identity, new_incarnation
from scaler_protocol.messages import (
    AgentStatus,
    Cancel,
    Done,
    Group,
    Message,
    NeedTasks,
    Recall,
    Reconcile,
    Release,
    Resend,
    Returned,
    Run,
    Submit,
    Withdraw,
    WorkerState,
)
from scaler_protocol.payloads import Payloads
from scaler_protocol.storage import DeleteObjects, GetObject, ObjectStored, PutObject

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + b"\x00" + bytes(31)
"""ZMTP 3.0, NULL security, as a client."""
HTTP = b"GET / HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n"

NONSENSE: Sequence[Message] = (
    Welcome(1),
    Refused(("no",)),
    NeedHello(),
    Heartbeat(2**63 - 1),
    Acknowledge(),
    Run(1, [Group(b"f" * 16)], [1], Payloads([b"call"])),
    Recall(2**31),
    Resend([1, 2]),
    Withdraw([1]),
    NeedTasks([1]),
    ObjectStored(b"o" * 16),
    Done([1], [0], Payloads([b""])),
    Cancel([1, 2**64 - 1]),
    Release([1, 2**64 - 1]),
    Returned([5]),
    Reconcile([1], [2], [3], [4]),
    AgentStatus(names=["w"], pids=[1], states=[WorkerState.RUNNING], runs=[1], cpus=[0.0], rsses=[0], queues=[0]),
    Submit([], [1], Payloads([b"call"])),
    Submit([Group(b"f" * 16)], [1], Payloads([b"call"]), task_groups=[7]),
    Submit([Group(b"f" * 16)], [1], Payloads([b"call"]), dependents=[9], needs=[1]),
    PutObject(b"o" * 16, 1, Payloads([b"xx"]), offset=2**62),
    GetObject(b"o" * 16, 2**62, 2**31),
    DeleteObjects([b"o" * 16]),
    Goodbye("not me"),
)
"""Messages of ours that this port is never told, or not by this peer, or not like this."""


@contextmanager
def line(port: int) -> Iterator[socket.socket]:
    """A TCP connection; whatever the other side does to it is of no interest."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connected, suppress(OSError):
        yield connected


def zmtp_command(name: bytes, body: bytes) -> bytes:
    """A ZMTP command frame."""
    content = bytes((len(name),)) + name + body
    return b"\x04" + bytes((len(content),)) + content


def zmtp_message(frames: Sequence[bytes | memoryview]) -> bytes:
    """A ZMTP message of these frames."""
    written = b""
    for position, frame in enumerate(frames):
        more = int(position < len(frames) - 1)
        written += struct.pack(">BQ", 2 | more, len(frame)) + bytes(frame)
    return written


def message_of(frames: Sequence[bytes | memoryview]) -> bytes:
    """A ZMTP message with these parts, as ours travel."""
    return zmtp_message([join(frames)])


READY = zmtp_command(b"READY", b"\x0bSocket-Type" + struct.pack(">I", 6) + b"DEALER")


@contextmanager
def dealer(port: int) -> Iterator[socket.socket]:
    """A connection that has shaken hands as ZeroMQ does."""
    with line(port) as connected:
        connected.sendall(GREETING)
        received = b""
        while len(received) < 64 + 2:
            more = connected.recv(4096)
            if not more:
                raise ConnectionResetError("the service does not shake hands")
            received += more
        connected.sendall(READY)
        yield connected


def raw_noise(port: int, moments: random.Random) -> None:
    """Random bytes, foreign protocols, handshakes that stop half-way."""
    beginnings = [
        HTTP,
        moments.randbytes(2000),
        b"",
        b"\xff",
        GREETING[:10],
        GREETING[:11] + b"\x63" + GREETING[12:],
        GREETING[:12] + b"PLAIN".ljust(20, b"\0") + bytes(32),
        GREETING,
        GREETING + READY[: len(READY) // 2],
        GREETING + moments.randbytes(500),
        GREETING + READY + b"\x02" + struct.pack(">Q", 2**62),
        GREETING + READY + b"\x02" + struct.pack(">Q", 1000) + b"too short",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + moments.randbytes(300),
    ]
    for beginning in beginnings:
        with line(port) as connected:
            connected.sendall(beginning)


def wrong_frames(port: int, moments: random.Random) -> None:
    """ZMTP messages that are none of ours: too few frames, random ones, truncated and damaged messages."""
    good = [bytes(frame) for frame in encode(hello())]
    with dealer(port) as connected:
        for parts in ([b""] * 500, [b"x" * 24, b"", b"hello"], [join([HEADER.pack(0, 0), *good]), b"more"]):
            connected.sendall(zmtp_message(parts))
        for frames in (
            [b""],
            [b"hello"],
            [b"", b""],
            [HEADER.pack(0, 0)],
            [HEADER.pack(0, 0), b""],
            [HEADER.pack(1, 2**64 - 1), moments.randbytes(8)],
            [HEADER.pack(0, 0), moments.randbytes(5000)],
            [HEADER.pack(0, 0), b"\xff" * 64],
            [b"x" * 17, *good],
            [HEADER.pack(0, 0)] * 500,
            *([HEADER.pack(0, 0), good[0][: len(good[0]) * part // 8]] for part in range(8)),
            *([HEADER.pack(0, 0), damaged(good[0], moments)] for _ in range(200)),
        ):
            connected.sendall(message_of(frames))


def damaged(frame: bytes, moments: random.Random) -> bytes:
    """With a few random bytes in random places."""
    changed = bytearray(frame)
    for _ in range(moments.randrange(1, 6)):
        changed[moments.randrange(len(changed))] = moments.randrange(256)
    return bytes(changed)


def hello(role: int = Role.CLIENT, service: int = ServiceKind.SCHEDULER) -> Hello:
    """A valid Hello of an unknown peer."""
    identity = new_identity()
    session = int.from_bytes(identity[:4], "big") | 1
    return Hello(role, identity, new_incarnation(), epoch=1, session=session, workers=1, queue_size=1, service=service)


def wrong_messages(port: int, role: int, service: int) -> None:
    """Good messages of the wrong direction or sense: without a Hello, and after one, numbered as they should be."""
    with dealer(port) as connected:
        for message in NONSENSE:
            connected.sendall(message_of([HEADER.pack(1, 0), *encode(message)]))
    for message in NONSENSE:
        with dealer(port) as connected:
            connected.sendall(message_of([HEADER.pack(0, 0), *encode(hello(role, service))]))
            for sequence in (1, 2):
                connected.sendall(message_of([HEADER.pack(sequence, 0), *encode(message)]))
            connected.recv(4096)


def answered(port: int, greeting: Hello, *bodies: Sequence[bytes | memoryview], until: bytes) -> bytes:
    """What the service writes to a peer that says these numbered messages, up to the bytes that are waited for."""
    received = b""
    with dealer(port) as connected:
        connected.sendall(message_of([HEADER.pack(0, 0), *encode(greeting)]))
        for sequence, body in enumerate(bodies, 1):
            connected.sendall(message_of([HEADER.pack(sequence, 0), *body]))
        while until not in received and (more := connected.recv(1 << 16)):
            received += more
    return received


def flood(port: int, moments: random.Random, messages: int, size: int = 200) -> None:
    """Garbage messages as fast as they go."""
    with dealer(port) as connected:
        for _ in range(messages // 100):
            connected.sendall(
                b"".join(message_of([moments.randbytes(16), moments.randbytes(size)]) * 1 for _ in range(100))
            )
