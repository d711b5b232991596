"""TaskGate: where threads that submit wait while the client has as many unfinished tasks as the scheduler allows.

Theory. The unfinished tasks are those that the core holds, those in the mailbox since the io thread took it last, and
those of graphs that were admitted and are still being serialized. Only the io thread counts the first; a thread that
submits checks the room and puts its entry into the mailbox under one lock. So each count is replaced, or starts anew,
with each turn of the io thread, and a thread that is interrupted between two steps loses no room for long.

Threads wait in no order: each change wakes all of them, and those that find no room wait on. Room arises without the
work of any waiting thread or callback, because the io thread alone handles the ends of tasks, and it never waits here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from scaler_client.core.graph_state import GraphPiece
from scaler_client.core.records import CallBlock
from scaler_client.futures.futures import ScalerFuture
from scaler_client.runtime.blocking import BlockingSection, MailboxEntry
from scaler_client.runtime.mailbox import Mailbox
from scaler_io.reentrant_lock import ReentrantLock
from scaler_io.thread_event import ThreadEvent, may_wait
from scaler_protocol.errors import SubmitLimitError
from scaler_protocol.plurals import counted

LOOK_SECONDS: Final = 1.0
"""Interval at which waiting threads look for room without being woken, and let signals through on Windows."""
_REMEDY: Final = "the scheduler's --max-number-of-tasks-waiting limits them"


class TaskGate:
    """Admits tasks of one client to its mailbox. `limit` is the most tasks that may be unfinished; 0 for any number."""

    def __init__(self, mailbox: Mailbox[MailboxEntry], waiting: BlockingSection) -> None:
        self.limit = 0
        self.exempt = False
        """Whether tasks are admitted at once: another task waits for them."""
        self._mailbox, self._waiting = mailbox, waiting
        self._lock = ReentrantLock()  # a signal handler or finalizer may submit in the middle of this
        self._held = self._entered = 0
        self._reserved: dict[object, int] = {}
        """By graph, the nodes that are admitted and not in the mailbox yet."""
        self._waiters: set[ThreadEvent] = set()

    # --- threads that submit ----------------------------------------------------------------------------------------

    def put(
        self,
        entry: ScalerFuture[object] | CallBlock,
        count: int,
        *,
        block: bool,
        woken: ThreadEvent | None = None,
        look: Callable[[], object] | None = None,
    ) -> None:
        """Put an entry of so many tasks into the mailbox once there is room for them.

        Args:
            block: whether to wait for room; otherwise SubmitLimitError is raised.
            woken, look: an event that also ends a wait, and what clears it, and may raise to give up.

        Raises what the mailbox was closed with.
        """

        def enter() -> bool:
            if self._has_room(count, alone=True):
                self._entered += count
                self._mailbox.put(entry)
                return True
            return False

        self._enter(enter, count, woken or ThreadEvent(), look, block=block)

    @contextmanager
    def reserved(self, count: int, *, block: bool) -> Iterator[Callable[[GraphPiece], None]]:
        """Reserve room for the nodes of a graph; yields what puts its pieces into the mailbox.

        Raises SubmitLimitError if the graph can never be admitted, or, unless `block`, not now.
        """
        graph = object()

        def enter() -> bool:
            if self._limits() and count > self.limit:
                raise SubmitLimitError(
                    f"the graph has {count:,} nodes, and this client may have at most {self.limit:,} unfinished tasks:"
                    f" {_REMEDY}"
                )
            if self._has_room(count):
                self._reserved[graph] = count
                return True
            return False

        def put(piece: GraphPiece) -> None:
            with self._lock:
                self._reserved[graph] -= len(piece.calls)
                self._entered += len(piece.calls)
                self._mailbox.put(piece)

        try:
            self._enter(enter, count, ThreadEvent(), None, block=block)
            yield put
        finally:
            with self._lock:
                self._reserved.pop(graph, None)

    def _enter(
        self,
        enter: Callable[[], bool],
        count: int,
        woken: ThreadEvent,
        look: Callable[[], object] | None,
        *,
        block: bool,
    ) -> None:
        with self._lock:
            if enter():
                return
            self._mailbox.check()
            if not block:
                raise SubmitLimitError(
                    f"this client has {counted(self._unfinished, 'unfinished task')} and may have {self.limit:,}, so"
                    f" {count:,} more {'is' if count == 1 else 'are'} not taken now: {_REMEDY}"
                )
            self._waiters.add(woken)
        try:
            while True:
                with self._waiting:
                    woken.wait(LOOK_SECONDS)
                (look or woken.clear)()
                with self._lock:
                    if enter():
                        return
                    self._mailbox.check()
        finally:
            with self._lock:
                self._waiters.discard(woken)

    def _has_room(self, count: int, *, alone: bool = False) -> bool:
        """Whether so many tasks may be submitted; `alone` also if there are no others."""
        unfinished = self._unfinished
        return unfinished + count <= self.limit or (alone and not unfinished) or not self._limits()

    def _limits(self) -> bool:
        return bool(self.limit) and not self.exempt and may_wait()

    @property
    def _unfinished(self) -> int:
        return self._held + self._entered + sum(self._reserved.values())

    # --- the io thread ----------------------------------------------------------------------------------------------

    def take(self) -> list[MailboxEntry]:
        """Remove and return all entries of the mailbox."""
        if not self.limit:  # only this thread changes it, and `update` counts anew
            return self._mailbox.take()
        with self._lock:
            self._held += self._entered
            self._entered = 0
            return self._mailbox.take()

    def update(self, limit: int, held: int) -> None:
        """The core has taken the entries and settled: it holds so many tasks."""
        with self._lock:
            changed = limit != self.limit
            self.limit, self._held = limit, held
            if self._waiters and (changed or self._unfinished < limit):
                self.wake()

    def wake(self) -> None:
        """Let all waiting threads look again: there may be room, or the mailbox is closed."""
        with self._lock:
            for waiter in self._waiters:
                waiter.set()
