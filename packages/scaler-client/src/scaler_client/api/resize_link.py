"""ResizeLink: asks the agent of a local cluster for a number of workers (`scaler_worker.agent.resize_channel`)."""

from __future__ import annotations

import select
import socket
import time


class ResizeLink:
    """One end of a socket pair, of which the agent has the other. For one thread at a time."""

    def __init__(self) -> None:
        self._ours, self.theirs = socket.socketpair()
        """`theirs` is handed to the process of the agent, then closed here."""
        self._number = 0
        self._text = b""

    def resize(self, workers: int, seconds: float) -> bool:
        """Ask for so many workers; returns whether there are so many within `seconds`.

        Raises ConnectionError if the agent has ended.
        """
        self._number += 1
        until = time.monotonic() + seconds
        self._ours.sendall(b"%d %d\n" % (self._number, workers))
        done = b"%d" % self._number
        while done not in self._answers():
            if not select.select([self._ours], [], [], max(0.0, until - time.monotonic()))[0]:
                return False
            data = self._ours.recv(4096)
            if not data:
                raise ConnectionResetError("the agent has ended")
            self._text += data
        return True

    def _answers(self) -> list[bytes]:
        """The numbers of answered requests that have arrived since the last call."""
        *lines, self._text = self._text.split(b"\n")
        return lines

    def close(self) -> None:
        """Close both ends."""
        self._ours.close()
        self.theirs.close()
