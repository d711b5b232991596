"""HTTP requests end in time, however slowly the answer comes."""

from __future__ import annotations

import socket
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from scaler_scheduler.service.timed_http import open_within

BEGINNING = b"HTTP/1.0 200 OK\r\nContent-Length: 1000000\r\n\r\n"


def answer_slowly(listener: socket.socket, beginning: bytes) -> None:
    """Write the beginning, then byte after byte until the other side has had enough."""
    connected, _ = listener.accept()
    with connected, suppress(OSError):
        connected.sendall(beginning)
        while True:
            connected.sendall(b" ")
            time.sleep(0.01)


@pytest.mark.parametrize("beginning", [b"", BEGINNING])
def test_an_answer_that_trickles_in_is_given_up(beginning: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor() as threads:
        ended = threads.submit(answer_slowly, listener, beginning)
        request = urllib.request.Request(f"http://127.0.0.1:{listener.getsockname()[1]}")
        with pytest.raises(TimeoutError), open_within(request, 0.3) as answer:
            answer.read()
        ended.result(10)
