"""A place where tasks wait until a test lets them go: tests know that a task runs without sleeping."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from types import TracebackType
from typing import TypeVar

T = TypeVar("T")

SECONDS = 60.0
"""How long a test waits for anything before it fails: on a host on which much else runs, a program starts in 20."""


def wait_at(port: int, value: T) -> T:
    """Run by tasks: say who is there, and give `value` back once the gate lets us through."""
    with socket.create_connection(("127.0.0.1", port), timeout=4 * SECONDS) as line:
        line.sendall(f"{os.getpid()} {value!r}\n".encode())
        line.recv(1)
    return value


class WentAwayError(AssertionError):
    """A task went away from the gate before it said who it is."""


class Arrival:
    """A task that waits at a gate."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        line.settimeout(SECONDS)
        words = b""
        while not words.endswith(b"\n"):
            got = line.recv(4096)
            if not got:
                raise WentAwayError
            words += got
        pid, _, self.value = words.decode().strip().partition(" ")
        self.pid = int(pid)

    def let_go(self) -> None:
        """The task goes on."""
        self._line.close()

    def wait_gone(self) -> None:
        """Block until the process of the task has ended."""
        if self._line.recv(1):
            raise AssertionError("a task that waits has nothing more to say")


class Gate:
    """Listens on a port; `wait_at(gate.port, value)` waits there."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.port: int = self._listener.getsockname()[1]
        self._waiting: list[Arrival] = []

    def arrive(self, seconds: float = SECONDS) -> Arrival:
        """The next task that has come; TimeoutError where none comes."""
        self._listener.settimeout(seconds)
        line, _ = self._listener.accept()
        arrival = Arrival(line)
        self._waiting.append(arrival)
        return arrival

    def arrived(self) -> list[Arrival]:
        """Those that have come by now, beyond the ones that were met and those that were stopped as they came."""
        arrivals: list[Arrival] = []
        while True:
            with suppress(WentAwayError):
                try:
                    arrivals.append(self.arrive(0))
                except BlockingIOError:
                    return arrivals

    def __enter__(self) -> Gate:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._listener.close()
        for arrival in self._waiting:
            arrival.let_go()
