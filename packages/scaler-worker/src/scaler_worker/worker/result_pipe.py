"""The pipe to the agent, into which processes that a task has forked may write, too."""

from __future__ import annotations

import fcntl
import os
import select

from scaler_worker.worker.forks import notify_forks


class ResultPipe:
    """Writes records in one piece each; one thread at a time (scaler_worker.worker.ordered_replies sees to that).

    Up to PIPE_BUF bytes are written in one piece by the kernel. More may be cut in two where the pipe is full: then no
    forked process may write, which `turns` is for, a file that each process locks for itself.
    """

    def __init__(self, descriptor: int, turns: int) -> None:
        self._descriptor, self._turns = descriptor, turns
        self._is_fork = False
        notify_forks(self)

    def forked(self) -> None:
        """Write in turns with the parent."""
        self._is_fork = True

    def write(self, record: bytes) -> None:
        """Write a record; blocks while the pipe is full."""
        if len(record) <= select.PIPE_BUF and not self._is_fork:
            os.write(self._descriptor, record)
            return
        fcntl.lockf(self._turns, fcntl.LOCK_EX)
        try:
            written = os.write(self._descriptor, record)
            while written < len(record):
                written += os.write(self._descriptor, memoryview(record)[written:])
        finally:
            fcntl.lockf(self._turns, fcntl.LOCK_UN)
