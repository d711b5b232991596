"""Peers that make a server use memory: they speak a minimal protocol of links over raw sockets."""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from scaler_io.links.streams import HEADER, cut, join
from scaler_protocol.codec import decode, encode
from scaler_protocol.errors import MalformedMessageError
from scaler_protocol.handshake import Heartbeat, Hello, Welcome
from scaler_protocol.messages import Message
from support.intruders import GREETING, READY, zmtp_command
from support.waiting import rest

MEGABYTE = 1024 * 1024
_PAGE = os.sysconf("SC_PAGE_SIZE")


def memory_of(pid: int) -> int:
    """Bytes of memory that a process has now, without files and what it shares."""
    _, resident, shared, *_ = map(int, Path(f"/proc/{pid}/statm").read_text("ascii").split())
    return (resident - shared) * _PAGE


class Growth:
    """How much the memory of a process has grown at most, over the looks."""

    def __init__(self, pid: int) -> None:
        self._pid, self._before, self.most = pid, memory_of(pid), 0

    def look(self) -> int:
        """Measure; return the growth in bytes."""
        grown = memory_of(self._pid) - self._before
        self.most = max(self.most, grown)
        return grown

    def watch(self, seconds: float) -> None:
        """Measure repeatedly for `seconds`."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.look()
            rest()


def padded(frames: Sequence[bytes | memoryview], size: int) -> list[bytes]:
    """The same message with a segment of `size` bytes that nothing refers to."""
    columns = bytes(frames[0])
    (words,) = struct.unpack_from("<I", columns, 4)
    assert columns[:4] == bytes(4), "one segment"
    table = struct.pack("<IIII", 1, words, size // 8, 0)
    return [table + columns[8:] + bytes(size // 8 * 8), *(bytes(frame) for frame in frames[1:])]


class Attacker:
    """A connection of ZeroMQ's protocol; with a `greeting` it is a peer and knows the service's Welcome."""

    def __init__(self, port: int, greeting: Hello | None = None, kind: bytes = b"DEALER") -> None:
        self._line = socket.create_connection(("127.0.0.1", port), timeout=20)
        self._line.sendall(GREETING)
        self._exactly(64)
        size = struct.pack(">I", len(kind))
        self._line.sendall(READY if kind == b"DEALER" else zmtp_command(b"READY", b"\x0bSocket-Type" + size + kind))
        self.sequence = self.received = 0
        self.welcome: Welcome | None = None
        if greeting is not None:
            self.send(greeting)
            self.welcome = self.read_until(Welcome)

    def _exactly(self, size: int) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            part = self._line.recv(min(size - len(parts), MEGABYTE))
            if not part:
                raise ConnectionResetError("closed by the server")
            parts += part
        return bytes(parts)

    def send(self, message: Message, padding: int = 0) -> None:
        """Send a message, numbered unless it is one that makes and keeps the connection."""
        numbered = not isinstance(message, Hello | Heartbeat)
        self.sequence += numbered
        frames = encode(message) if not padding else padded(encode(message), padding)
        written = join([HEADER.pack(self.sequence if numbered else 0, self.received), *frames])
        self.send_frame(written)

    def send_frame(self, content: bytes, *, more: bool = False) -> None:
        """Send one frame; raises OSError once the server has closed the connection."""
        self._line.sendall(struct.pack(">BQ", 2 | more, len(content)) + content)

    def send_bytes(self, content: bytes) -> None:
        """Send bytes as they are."""
        self._line.sendall(content)

    def read(self) -> Message | None:
        """The next message; None for a frame that is none. Raises OSError if the server has closed the connection."""
        flags = self._exactly(1)[0]
        size = struct.unpack(">Q", self._exactly(8))[0] if flags & 2 else self._exactly(1)[0]
        content = self._exactly(size)
        if flags & 4:
            if content.startswith(b"\x04PING"):
                self._line.sendall(zmtp_command(b"PONG", content[7:]))
            return None
        frames = cut(content)
        self.received = max(self.received, HEADER.unpack(frames[0])[0])
        with suppress(MalformedMessageError):
            return decode(frames[1:])
        return None

    def read_until(self, kind: type[Welcome]) -> Welcome:
        """The next message of this type."""
        while not isinstance(message := self.read(), kind):
            pass
        return message

    def is_closed(self) -> bool:
        """Whether the server closes the connection, or has closed it, within the timeout of the socket."""
        try:
            while self._line.recv(MEGABYTE):
                pass
        except TimeoutError:
            return False
        except OSError:
            return True
        return True

    def is_cut_off(self, content: bytes, times: int, growth: Growth) -> bool:
        """Send bytes again and again; returns whether the server has closed the connection.

        Raises TimeoutError if it neither reads nor closes.
        """
        try:
            for _ in range(times):
                self.send_bytes(content)
                growth.look()
        except TimeoutError:
            raise
        except OSError:
            return True
        return False

    def __enter__(self) -> Attacker:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._line.close()
