"""HTTP requests that end in time: the time-out of urllib is one for each read, so an answer may trickle in for ever."""

from __future__ import annotations

import io
import socket
import time
import urllib.request
from collections.abc import Callable
from functools import partial
from http.client import HTTPConnection, HTTPResponse, HTTPSConnection
from typing import Any


class _TimedReader(io.RawIOBase):
    """Reads a socket until a moment of time.monotonic; then TimeoutError."""

    def __init__(self, connected: socket.socket, reader: io.BufferedIOBase, until: float) -> None:
        self._socket, self._reader, self._until = connected, reader, until

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        rest = self._until - time.monotonic()
        if rest <= 0:
            raise TimeoutError("timed out")
        self._socket.settimeout(rest)
        return self._reader.readinto1(buffer)

    def close(self) -> None:
        self._reader.close()
        super().close()


class _TimedResponse(HTTPResponse):
    """An answer that is read until a moment of time.monotonic."""

    def __init__(self, connected: socket.socket, *words: Any, until: float, **settings: Any) -> None:
        super().__init__(connected, *words, **settings)
        self.fp = io.BufferedReader(_TimedReader(connected, self.fp, until))


def _timed(kind: type[HTTPConnection], until: float) -> Callable[..., HTTPConnection]:
    def connect(*words: Any, **settings: Any) -> HTTPConnection:
        connection = kind(*words, **settings)
        connection.response_class = partial(_TimedResponse, until=until)  # type: ignore[assignment]
        return connection

    return connect


class _Http(urllib.request.HTTPHandler):
    def __init__(self, until: float) -> None:
        super().__init__()
        self._until = until

    def http_open(self, request: urllib.request.Request) -> HTTPResponse:
        return self.do_open(_timed(HTTPConnection, self._until), request)


class _Https(urllib.request.HTTPSHandler):
    def __init__(self, until: float) -> None:
        super().__init__()
        self._until = until

    def https_open(self, request: urllib.request.Request) -> HTTPResponse:
        return self.do_open(_timed(HTTPSConnection, self._until), request)


def open_within(request: urllib.request.Request, seconds: float) -> Any:
    """As urllib.request.urlopen; connecting and reading the whole answer take at most about `seconds`, or OSError."""
    until = time.monotonic() + seconds
    return urllib.request.build_opener(_Http(until), _Https(until)).open(request, timeout=seconds)
