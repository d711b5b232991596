"""ResizeLink: asks the agent of a local cluster for a number of workers (`scaler_worker.agent.resize_channel`)."""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from collections.abc import Callable


class ResizeLink:
    """One end of a socket pair; the agent has the other. One thread at a time asks, any thread may wake it."""

    def __init__(self) -> None:
        self._ours, self.theirs = socket.socketpair()
        """`theirs` is handed to the process of the agent, then closed here."""
        self._waker, self._wakes = socket.socketpair()
        self._number = 0
        self._text = b""

    def resize(self, workers: int, seconds: float, is_wanted: Callable[[], bool]) -> bool:
        """Ask for so many workers; returns whether there are so many within `seconds`.

        After each `wake` it waits on only if `is_wanted()`. Raises ConnectionError if the agent has ended.
        """
        self._number += 1
        until = time.monotonic() + seconds
        self._ours.sendall(b"%d %d\n" % (self._number, workers))
        done = b"%d" % self._number
        with selectors.DefaultSelector() as selector:  # select.select() refuses descriptors above 1,023
            selector.register(self._ours, selectors.EVENT_READ)
            selector.register(self._wakes, selectors.EVENT_READ)
            while done not in self._answers():
                ready = [key.fileobj for key, _ in selector.select(max(0.0, until - time.monotonic()))]
                if self._wakes in ready:
                    self._wakes.recv(4096)
                    if not is_wanted():
                        return False
                if self._ours in ready:
                    self._receive()
                if not ready:
                    return False
        return True

    def wake(self) -> None:
        """Have the thread that waits look whether its number is still wanted; for any thread."""
        with contextlib.suppress(OSError):  # closed meanwhile: it does not wait any more
            self._waker.send(b".")

    def _receive(self) -> None:
        data = self._ours.recv(4096)
        if not data:
            raise ConnectionResetError("the agent has ended")
        self._text += data

    def _answers(self) -> list[bytes]:
        """The numbers of answered requests that have arrived since the last call."""
        *lines, self._text = self._text.split(b"\n")
        return lines

    def close(self) -> None:
        """Close all ends."""
        for end in (self._ours, self.theirs, self._waker, self._wakes):
            end.close()
