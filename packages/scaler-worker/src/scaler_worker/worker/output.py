"""Captures what a task prints.

Finalizers and signal handlers may interrupt a print and print themselves, so nothing here waits for a lock that the
interrupted code may hold.
"""

from __future__ import annotations

import codecs
import io
import sys
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, TextIO

from scaler_io.reentrant_lock import ReentrantLock
from scaler_worker.worker.forks import notify_forks

STDOUT: Final = 1
STDERR: Final = 2
FLUSH_CHARACTERS: Final = 8192


class Pump:
    """Calls `work` once per request or for several at once, never concurrently.

    A finalizer or signal handler may interrupt `work` and request it: `run` then returns at once, and the interrupted
    caller calls `work` again.
    """

    __slots__ = ("_asked", "_lock", "_work", "_working")

    def __init__(self, work: Callable[[], object]) -> None:
        self._work = work
        self.renew()

    def renew(self) -> None:
        """Reset in a forked process, where the thread that was working does not exist."""
        self._lock = ReentrantLock()
        self._asked = self._working = False

    def run(self) -> None:
        """Have `work` called after this request."""
        self._asked = True
        with self._lock:
            if self._working:
                return
            while self._asked:
                self._working = True
                try:
                    self._asked = False
                    self._work()
                finally:
                    self._working = False


class _Bytes(io.BufferedIOBase):
    """The `buffer` of a stream: decodes bytes as UTF-8."""

    def __init__(self, stream: _Stream) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._stream.fileno()

    def write(self, data: Any, /) -> int:
        found = bytes(memoryview(data))
        self._stream.write(self._decoder.decode(found))
        return len(found)

    def flush(self) -> None:
        self._stream.flush()


class _Stream(io.TextIOBase):
    """Replaces sys.stdout or sys.stderr while a task runs; sends complete lines.

    After the task it writes to the original stream, since a thread may still hold a reference to it.
    """

    encoding = "utf-8"
    errors = "replace"

    def __init__(self, original: TextIO | None, send: Callable[[str], None]) -> None:
        self._original = original
        self._send: Callable[[str], object] = send
        self._ended = False
        self._pieces: deque[str] = deque()
        self._size = 0
        """Approximate number of characters: threads update it without a lock."""
        self._pump = Pump(self._send_pieces)
        self._buffer: _Bytes | None = None
        notify_forks(self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    @property
    def buffer(self) -> _Bytes:
        """The binary stream underneath."""
        if self._buffer is None:
            self._buffer = _Bytes(self)
        return self._buffer

    def forked(self) -> None:
        """Drop unsent text: the parent sends it."""
        self._pieces.clear()
        self._pump.renew()

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        if self._original is None:
            raise io.UnsupportedOperation("fileno")
        return self._original.fileno()

    def write(self, text: str, /) -> int:
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        if self._ended:
            self._pass_on(text)
            return len(text)
        self._pieces.append(text)
        self._size += len(text)
        if "\n" in text or self._size >= FLUSH_CHARACTERS:
            self._pump.run()
        return len(text)

    def flush(self) -> None:
        self._pump.run()

    def _pass_on(self, text: str) -> None:
        if self._original is not None:  # a process may have no standard streams
            self._original.write(text)

    def _send_pieces(self) -> None:
        self._size = 0
        pieces = self._pieces
        if text := "".join([pieces.popleft() for _ in range(len(pieces))]):
            self._send(text)

    def end(self) -> None:
        """Send the rest; later text goes to the original stream."""
        self._ended = True
        self._pump.run()
        self._send = self._pass_on  # for a thread that is inside `write`


class CapturedOutput:
    """Context manager: sends what any thread of the process prints."""

    def __init__(self, send: Callable[[int, str], None]) -> None:
        self._kept = sys.stdout, sys.stderr
        self._out = _Stream(sys.stdout, lambda text: send(STDOUT, text))
        self._error = _Stream(sys.stderr, lambda text: send(STDERR, text))

    def __enter__(self) -> None:
        sys.stdout, sys.stderr = self._out, self._error

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._out.end()
        self._error.end()
        sys.stdout, sys.stderr = self._kept
