"""ResizeChannel: the socket on which the program that started a local cluster says how many workers there are to be.

A request is a line: its number and the number of workers. The answer is a line with the number of the request, when the
cluster has so many workers. A request that comes before the answer to an earlier one replaces it.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import Final

_READ_BYTES: Final = 4096


class ResizeChannel:
    """Takes requests from a descriptor, which it owns, until the other end is closed. Construct it in the loop."""

    def __init__(self, descriptor: int, resize: Callable[[int, Callable[[], None]], None]) -> None:
        """`resize` takes the number of workers, and what to call when there are so many."""
        self._resize = resize
        self._loop = asyncio.get_running_loop()
        self._socket = socket.socket(fileno=descriptor)
        self._socket.setblocking(False)
        self._socket.set_inheritable(False)
        self._text = b""
        self._loop.add_reader(descriptor, self._read)

    def _read(self) -> None:
        try:
            data = self._socket.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except ConnectionResetError:
            data = b""
        if not data:
            self.close()
            return
        *lines, self._text = (self._text + data).split(b"\n")
        if lines:
            number, workers = map(int, lines[-1].split())
            self._resize(workers, lambda: self._answer(number))

    def _answer(self, number: int) -> None:
        with contextlib.suppress(OSError):  # the program has ended, or has closed the socket
            self._socket.send(b"%d\n" % number)

    def close(self) -> None:
        """Close the socket; may be called again."""
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket)
            self._socket.close()
