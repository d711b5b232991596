"""BlockingSection: what a thread enters while it blocks on futures."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from scaler_client.core.events import BlockingChanged, ClientRequest
from scaler_client.futures.futures import ScalerFuture
from scaler_client.runtime.mailbox import Mailbox
from scaler_client.task_context import TaskRuntime
from scaler_io.reentrant_lock import ReentrantLock
from scaler_io.thread_event import check_may_wait
from scaler_protocol.errors import ClientForkedError

MailboxEntry = ScalerFuture[Any] | ClientRequest
"""An entry of the io thread's mailbox: a submitted call, or a request, handled in order."""


class BlockingSection:
    """Entered by a thread while it blocks on futures.

    Inside a task, the first thread to enter and the last to leave report the task as blocked and unblocked. Entering
    flushes the mailbox. Raises RuntimeError in a thread that must not wait, ClientForkedError in a forked process.
    """

    def __init__(self, mailbox: Mailbox[MailboxEntry], runtime: TaskRuntime | None) -> None:
        self._mailbox, self._runtime = mailbox, runtime
        self.forked = False
        self._lock = ReentrantLock()  # a signal handler may wait for a future in the middle of this
        self._runs: dict[int, int] = {}

    def __enter__(self) -> None:
        if self.forked:
            raise ClientForkedError
        check_may_wait()
        if self._runtime is not None:
            self._count(1)
        self._mailbox.flush()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._runtime is not None:
            self._count(-1)

    def _count(self, change: int) -> None:
        task = self._runtime.current() if self._runtime is not None else None
        if task is None or self._mailbox.closed:
            return
        with self._lock:
            threads = self._runs.pop(task._run, 0) + change
            if threads > 0:
                self._runs[task._run] = threads
            if threads == (change > 0):
                self._mailbox.put(BlockingChanged(task._run, change > 0))
