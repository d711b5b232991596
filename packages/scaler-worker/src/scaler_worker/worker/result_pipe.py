"""The pipe to the agent, shared with processes that tasks fork."""

from __future__ import annotations

import fcntl
import os
import select

from scaler_worker.worker.forks import notify_forks


class ResultPipe:
    """Writes each record contiguously. Callers serialize threads (scaler_worker.worker.ordered_replies).

    The kernel writes up to PIPE_BUF bytes atomically. A longer record may be split while the pipe is full, so its
    writer and all forked processes lock the descriptor `lock_file` with fcntl, whose locks are per process.
    """

    def __init__(self, descriptor: int, lock_file: int) -> None:
        self._descriptor, self._lock_file = descriptor, lock_file
        self._is_fork = False
        notify_forks(self)

    def forked(self) -> None:
        """Take the lock for every record from now on."""
        self._is_fork = True

    def write(self, record: bytes) -> None:
        """Write a record; blocks while the pipe is full. Raises BrokenPipeError if the agent has exited."""
        if len(record) <= select.PIPE_BUF and not self._is_fork:
            os.write(self._descriptor, record)
            return
        fcntl.lockf(self._lock_file, fcntl.LOCK_EX)
        try:
            written = os.write(self._descriptor, record)
            while written < len(record):
                written += os.write(self._descriptor, memoryview(record)[written:])
        finally:
            fcntl.lockf(self._lock_file, fcntl.LOCK_UN)
