"""NonblockingWriter: writes lines without waiting for a reader that has stopped, or for room on a full disk."""

from __future__ import annotations

import errno
import os
import select
import socket
import stat
import sys
import time
from collections.abc import Callable
from typing import Final, TextIO

if sys.platform == "win32":
    raise ImportError("pipes cannot be polled on Windows")

PATIENCE_SECONDS: Final = 0.2
"""How long, in total, to wait for a slow reader, so that no line of a burst is dropped."""
RENEWAL_SECONDS: Final = 10.0
"""How long after the last wait a reader has the full PATIENCE_SECONDS again."""
_LATER: Final = (errno.EAGAIN, errno.ENOSPC, errno.EDQUOT)
"""Another process was faster, or the disk is full: it is tried again with the next line."""


class NonblockingWriter:
    """Writes lines without the buffer of a stream. `write` and `close` raise OSError if the reader is gone."""

    def __init__(self, descriptor: int, send: Callable[[bytes], int], close: Callable[[], None]) -> None:
        self._send, self._close = send, close
        self._poller = select.poll()
        self._poller.register(descriptor, select.POLLOUT)
        self._rest = b""
        """The rest of a partly written line."""
        self._patience, self._renewed_at = PATIENCE_SECONDS, 0.0

    @classmethod
    def on(cls, stream: TextIO) -> NonblockingWriter | None:
        """Make a writer for a stream; None without a descriptor."""
        try:
            descriptor = stream.fileno()
        except (OSError, ValueError):
            return None
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISSOCK(mode):
            connection = socket.socket(fileno=os.dup(descriptor))
            return cls(connection.fileno(), lambda data: connection.send(data, socket.MSG_DONTWAIT), connection.close)
        if stat.S_ISREG(mode):  # all who write there share the position
            own = os.dup(descriptor)
            return cls(own, lambda data: os.write(own, data), lambda: os.close(own))
        own = _own_description(descriptor)
        # A writable pipe accepts this many bytes without waiting.
        return cls(own, lambda data: os.write(own, data[: select.PIPE_BUF]), lambda: os.close(own))

    def write(self, line: bytes) -> bool:
        """Whether the line, or a part of it, is written; its rest is written before the next line."""
        self._rest = self._unsent(self._rest)
        if self._rest:
            return False
        self._rest = self._unsent(line)
        if self._rest == line:
            self._rest = b""
            return False
        return True

    def close(self) -> None:
        """Write the rest of the last line if its reader can take it."""
        try:
            self._unsent(self._rest)
        finally:
            self._close()

    def _unsent(self, data: bytes) -> bytes:
        """Write `data`; returns what is left of it because the reader has stopped, or the disk is full."""
        while data and self._writable():
            try:
                data = data[self._send(data) :]
            except OSError as error:
                if error.errno not in _LATER:
                    raise
                break
        return data

    def _writable(self) -> bool:
        if self._poller.poll(0):
            return True
        began = time.monotonic()
        if began >= self._renewed_at:
            self._patience = PATIENCE_SECONDS
        ready = bool(self._poller.poll(max(0.0, self._patience) * 1000))
        self._patience -= time.monotonic() - began
        self._renewed_at = began + RENEWAL_SECONDS
        return ready


def _own_description(descriptor: int) -> int:
    """Open the same file without blocking: O_NONBLOCK on the descriptor itself would affect all who share it."""
    try:
        flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        return os.open(f"/proc/self/fd/{descriptor}", flags)
    except OSError:  # another user's file, or no /proc: polling must suffice
        return os.dup(descriptor)
