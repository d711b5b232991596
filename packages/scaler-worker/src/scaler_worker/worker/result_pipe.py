"""The pipe to the agent, shared with processes that tasks fork."""

from __future__ import annotations

import fcntl
import os
import select

from scaler_worker.worker.forks import notify_forks


class ResultPipe:
    """Writes each reply contiguously. Callers serialize threads (scaler_worker.worker.ordered_replies).

    The kernel writes up to PIPE_BUF bytes atomically. A longer reply may be split while the pipe is full, so its
    writer and all forked processes lock the descriptor `lock_file` with fcntl, whose locks are per process.
    """

    def __init__(self, descriptor: int, lock_file: int) -> None:
        self._descriptor, self._lock_file = descriptor, lock_file
        self._is_fork = False
        notify_forks(self)

    def forked(self) -> None:
        """Take the lock for every reply from now on."""
        self._is_fork = True

    def write(self, reply: bytes) -> None:
        """Write a reply; blocks while the pipe is full. Raises BrokenPipeError if the agent has exited."""
        if len(reply) <= select.PIPE_BUF and not self._is_fork:
            os.write(self._descriptor, reply)
            return
        fcntl.lockf(self._lock_file, fcntl.LOCK_EX)
        try:
            written = os.write(self._descriptor, reply)
            while written < len(reply):
                written += os.write(self._descriptor, memoryview(reply)[written:])
        finally:
            fcntl.lockf(self._lock_file, fcntl.LOCK_UN)
