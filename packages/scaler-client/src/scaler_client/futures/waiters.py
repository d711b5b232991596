"""How threads, `concurrent.futures.wait`, `as_completed` and callbacks wait for futures."""

from __future__ import annotations

import concurrent.futures
import logging
import math
import numbers
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any, Protocol

from scaler_client.core.records import CallGroup, Dependency
from scaler_io.reentrant_lock import ReentrantLock
from scaler_io.thread_event import ThreadEvent
from scaler_protocol.ranges import shown

WaitTimeoutError: type[Exception] = TimeoutError
if sys.version_info < (3, 11):  # there are two; callers catch either

    class _WaitTimeoutError(concurrent.futures.TimeoutError, TimeoutError):
        """The future was not done in time."""

    WaitTimeoutError = _WaitTimeoutError


guard = ReentrantLock()
"""Held while outcomes are delivered to futures without a Watch, and while a Watch is created."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=guard._at_fork_reinit)  # type: ignore[attr-defined]


def deadline(timeout: float | None) -> float:
    """The end of a wait of `timeout` seconds (time.monotonic); raises ValueError if it is not a number."""
    if timeout is None:
        return math.inf
    try:
        seconds = float(timeout) if isinstance(timeout, numbers.Real) else math.nan
    except OverflowError:  # a whole number that no float can hold
        seconds = math.nan
    if math.isnan(seconds):
        raise ValueError(f"timeout is {shown(timeout)}, not a number of seconds, or None")
    return time.monotonic() + seconds


class FutureOwner(Protocol):
    """The connection that a future belongs to."""

    @property
    def waiting(self) -> AbstractContextManager[object]:
        """A context that a thread enters while it blocks on a future; entering it flushes submitted calls."""

    def cancel(self, tasks: Sequence[int]) -> None:
        """Cancel these tasks. Never blocks."""

    def call_soon(self, work: Callable[[], object]) -> None:
        """Run this in the callback thread."""

    def submit_again(self, group: CallGroup, call: bytes, needs: Sequence[Dependency]) -> Any:
        """Submit a call as a new task; returns its future. Raises SubmitLimitError, ClientQuitError."""


class ThreadWaiter(ThreadEvent):
    """Blocks one thread in `result()`, with the interface of the waiters of concurrent.futures."""

    __slots__ = ()

    def add_result(self, future: object) -> None:
        self.set()

    add_exception = add_cancelled = add_result


class DueCallbacks:
    """The futures of this process with pending callbacks. Thread-safe."""

    def __init__(self) -> None:
        self._futures: dict[Future[Any], None] = {}
        self._called = ThreadEvent()

    def add(self, future: Future[Any]) -> None:
        """Add a pending future that has a callback."""
        self._futures[future] = None

    def call(self, future: Future[Any], callbacks: list[Any]) -> None:
        """Call all callbacks of a done future; logs each Exception, raises the last other BaseException at the end.

        If a signal handler raises between two callbacks, the remaining ones stay in the list. Each is removed before
        its call, because it may refer to the future and so keep the result alive.
        """
        raised: BaseException | None = None
        while callbacks:
            callback = callbacks[0]
            del callbacks[0]  # not pop: a signal handler may run after a call returns, and the callback would be lost
            try:
                callback(future)
            except Exception:
                logging.getLogger("scaler").exception("exception calling callback for %r", future)
            except BaseException as error:
                raised = error
        self._futures.pop(future, None)
        self._called.set()
        if raised is not None:
            raise raised

    def discard(self, future: Future[Any]) -> None:
        """Remove a pending future that has no callback any more."""
        self._futures.pop(future, None)
        self._called.set()

    def clear(self) -> None:
        """Forget all futures in a forked process, which has no callback thread."""
        self._futures, self._called = {}, ThreadEvent()

    def wait(self) -> None:
        """Block until no done future has pending callbacks."""
        while True:
            self._called.clear()
            if not any(future.done() for future in list(self._futures)):
                return
            self._called.wait()


due_callbacks = DueCallbacks()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=due_callbacks.clear)


class _WaitEvent(ThreadEvent):
    """Replaces the event of `concurrent.futures.wait` and `as_completed`, so that waiting enters `owner.waiting`."""

    __slots__ = ("_owner",)

    def __init__(self, owner: FutureOwner) -> None:
        super().__init__()
        self._owner = owner

    def wait(self, timeout: float | None = None) -> bool:
        if self.is_set():
            return True
        with self._owner.waiting:
            return super().wait(timeout)


class Watch:
    """The lock, waiters and callbacks of a future, created when a thread first waits for it or adds a callback."""

    __slots__ = ("callbacks", "lock", "takers", "waiters")

    def __init__(self) -> None:
        self.lock = ReentrantLock()
        self.waiters: list[Any] = []
        self.callbacks: list[Callable[[Future[Any]], object]] = []
        self.takers: dict[int, int] = {}
        """How often each thread that found the future pending has taken its Condition."""

    def is_taken(self) -> bool:
        """Whether this thread has taken the Condition, and found the future pending."""
        return threading.get_ident() in self.takers

    def remove_callbacks(self, fn: Callable[[Any], object]) -> int:
        """Remove a callback; returns how often it was there."""
        before = len(self.callbacks)
        self.callbacks[:] = [callback for callback in self.callbacks if callback != fn]
        return before - len(self.callbacks)

    def remove_waiters(self, fn: Callable[[Any], object]) -> int:
        """Remove the waiters of event loops that call `fn`; returns how many there were."""
        before = len(self.waiters)
        self.waiters[:] = [waiter for waiter in self.waiters if getattr(waiter, "fn", None) != fn]
        return before - len(self.waiters)


class WatchedFuture(Protocol):
    """What a Condition needs of its future."""

    _owner: FutureOwner

    def done(self) -> bool:
        """Whether there is an outcome."""

    def _watching(self) -> Watch:
        """Its Watch."""

    def _notify(self, waiters: list[Any]) -> None:
        """Notify waiters that it is done."""

    def _remove_waiter(self, waiter: object) -> None:
        """Remove a waiter."""


class Condition:
    """The `_condition` of a future, and its list `_waiters`, for `concurrent.futures.wait` and `as_completed`.

    They take the conditions of all their futures, read the states, and add a waiter to each future. A signal handler
    that raises meanwhile leaves conditions taken. So a condition keeps no outcome back: a thread that took it while the
    future was pending sees it so, and a waiter that it adds is notified at once of an outcome that came since.
    """

    __slots__ = ("_future", "_watch")

    def __init__(self, future: WatchedFuture) -> None:
        self._future, self._watch = future, future._watching()

    def acquire(self) -> None:
        """Keep the state as this thread sees it."""
        takers, thread = self._watch.takers, threading.get_ident()
        if thread in takers or not self._future.done():
            takers[thread] = takers.get(thread, 0) + 1

    def release(self) -> None:
        """Undo one `acquire` of this thread."""
        takers, thread = self._watch.takers, threading.get_ident()
        if (times := takers.pop(thread, 0)) > 1:
            takers[thread] = times - 1

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *raised: object) -> None:
        self.release()

    def append(self, waiter: Any) -> None:
        """Add a waiter."""
        if type(getattr(waiter, "event", None)) is threading.Event:  # no future knows it yet
            waiter.event = _WaitEvent(self._future._owner)
            waiter.lock = ReentrantLock()
        with self._watch.lock:
            self._watch.waiters.append(waiter)
            is_late = self._future.done() and self._watch.is_taken()
        if is_late:
            self._future._notify([waiter])

    def remove(self, waiter: Any) -> None:
        """Remove a waiter."""
        self._future._remove_waiter(waiter)
