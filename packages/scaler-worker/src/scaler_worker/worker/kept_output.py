"""KeptOutput: what tasks print is also sent to the agent, for monitors, and is written as JSON where logs are JSON.

The standard streams are replaced once, so that tasks that print nothing pay nothing.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
from collections.abc import Callable
from datetime import datetime
from typing import Final, TextIO

from scaler_protocol.outputs import KEPT
from scaler_worker.worker.leftovers import OpenBytes, OpenText, standard_stream

LINE_BYTES: Final = 16 * 1024
"""Of a line that is written as one JSON object; the rest of a longer one is in further objects."""
_REST: Final = "\n(more was printed; of each run {:,} bytes are kept)\n"


class KeptOutput:
    """The output of the current run, of which at most `limit` bytes are sent, and which is JSON with `as_json`."""

    def __init__(
        self,
        limit: int,
        worker: str,
        host: str,
        current: Callable[[], tuple[int, int]],
        send: Callable[[int, int, bytes], None],
        *,
        as_json: bool = False,
    ) -> None:
        """`current` tells run and task, 0 between tasks; `send` sends output: the stream, the run and the bytes."""
        self.is_unfinished = False
        """Whether something was printed since `finish`: its last line may be on its way."""
        self._limit, self._worker, self._host, self._as_json = limit, worker, host, as_json
        self._current, self._send = current, send
        self._run, self._left = 0, 0
        """The run that printed last, and how much more of its output is kept."""
        self._lines = {1: b"", 2: b""}
        """The beginnings of lines that are not complete, by stream; at most LINE_BYTES of each."""
        self._streams: list[TextIO] = []

    def stream(self, number: int) -> TextIO:
        """Standard output (1) or error (2), which tells this object what is written."""
        if not self._limit and not self._as_json:
            return standard_stream(number)
        made = _KeptText(_KeptBytes(number, self), number, self)
        self._streams.append(made)
        return made

    def finish(self) -> None:
        """The run is over: send and write what it has printed, as whole lines."""
        self.is_unfinished = False
        for stream in self._streams[-2:]:
            with contextlib.suppress(OSError, ValueError):  # its disk is full; or the task has detached it
                stream.flush()
        for number, rest in self._lines.items():
            if rest:
                self._lines[number] = b""
                with contextlib.suppress(OSError):
                    os.write(number, self._json_line(number, rest, self._current()[1]))

    def take(self, number: int, data: bytes) -> bytes:
        """Bytes were written to a stream: keep them; returns those that are to be passed on."""
        run, task = self._current()
        if run:
            self.keep(number, run, data)
        if not self._as_json:
            return data
        self.is_unfinished = True
        *whole, last = (self._lines[number] + data).split(b"\n")
        *full, self._lines[number] = _pieces(last)
        pieces = [piece for line in whole for piece in _pieces(line)] + full
        return b"".join([self._json_line(number, piece, task) for piece in pieces])

    def keep(self, number: int, run: int, data: bytes) -> None:
        """Send output of a run as far as its limit allows."""
        if run != self._run:
            self._run, self._left = run, self._limit
        if self._left <= 0:
            return
        self._left -= len(data)
        if self._left < 0:
            kept = data[: self._left].decode("utf-8", "ignore") + _REST.format(self._limit)
            data, self._left = kept.encode(), 0
        self._send(KEPT + number, run, data)

    def _json_line(self, number: int, line: bytes, task: int) -> bytes:
        entry: dict[str, object] = {
            "time": datetime.now().astimezone().isoformat(timespec="milliseconds"),
            "level": "INFO",
            "process": os.getpid(),
            "message": line.decode("utf-8", "replace"),
            "stream": "stdout" if number == 1 else "stderr",
            "worker": self._worker,
            "host": self._host,
        }
        if task:
            entry["task"] = f"{task:x}"
        return json.dumps(entry).encode() + b"\n"


def _pieces(line: bytes) -> list[bytes]:
    """A line in pieces of at most LINE_BYTES, none of which begins within a character."""
    pieces, at = [], 0
    while len(line) - at > LINE_BYTES:
        end = at + LINE_BYTES
        while line[end] & 0xC0 == 0x80 and end > at + LINE_BYTES - 3:  # it continues a character
            end -= 1
        pieces.append(line[at:end])
        at = end
    return [*pieces, line[at:]]


class _KeptBytes(OpenBytes):
    """The buffer of a kept stream, through which texts go, too."""

    def __init__(self, number: int, output: KeptOutput) -> None:
        super().__init__(io.FileIO(number, "w", closefd=False))
        self._number, self._output = number, output

    def write(self, data: object, /) -> int:
        found = bytes(memoryview(data))  # type: ignore[arg-type]
        super().write(self._output.take(self._number, found))
        return len(found)


class _KeptText(OpenText):
    def __init__(self, buffer: _KeptBytes, number: int, output: KeptOutput) -> None:
        errors = "strict" if number == 1 else "backslashreplace"
        super().__init__(buffer, encoding="utf-8", errors=errors, line_buffering=True)
        self._output = output

    def write(self, text: str, /) -> int:
        self._output.is_unfinished = True
        return super().write(text)
