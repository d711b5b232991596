"""What a task prints, on its way to the client."""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Final, TextIO

STDOUT: Final = 1
STDERR: Final = 2
FLUSH_CHARACTERS: Final = 8192


class _Stream(io.TextIOBase):
    """Stands for sys.stdout or sys.stderr while a task runs; a line is sent when it is complete.

    After the task it passes on to the stream it stood for: a thread may have kept it.
    """

    def __init__(self, original: TextIO, send: Callable[[str], None]) -> None:
        self._original = original
        self._send: Callable[[str], None] | None = send
        self._pieces: list[str] = []
        self._size = 0
        self._lock = threading.Lock()

    encoding = "utf-8"

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._original.fileno()

    def write(self, text: str, /) -> int:
        with self._lock:
            if self._send is None:
                return self._original.write(text)
            self._pieces.append(text)
            self._size += len(text)
            if "\n" in text or self._size >= FLUSH_CHARACTERS:
                self._flush()
        return len(text)

    def flush(self) -> None:
        with self._lock:
            self._flush()

    def _flush(self) -> None:
        if self._pieces and self._send is not None:
            self._send("".join(self._pieces))
            self._pieces.clear()
            self._size = 0

    def end(self) -> None:
        """The task is over."""
        with self._lock:
            self._flush()
            self._send = None


class CapturedOutput:
    """Sends what is printed, by any thread of the process, as long as it is entered."""

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
