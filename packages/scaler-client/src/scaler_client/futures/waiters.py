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


class _WaitEvent(threading.Event):
    """Replaces the event of `concurrent.futures.wait` and `as_completed`, so that waiting enters `owner.waiting`."""

    def __init__(self, owner: FutureOwner) -> None:
        super().__init__()
        self._owner = owner

    def wait(self, timeout: float | None = None) -> bool:
        if self.is_set():
            return True
        with self._owner.waiting:
            return super().wait(timeout)


class _Waiters(list[Any]):
    """The waiters of one future."""

    __slots__ = ("_owner",)

    def __init__(self, owner: FutureOwner) -> None:
        self._owner = owner

    def append(self, waiter: Any) -> None:
        # The event cannot be set yet: concurrent.futures installs a waiter while it holds all the locks.
        if type(getattr(waiter, "event", None)) is threading.Event:
            waiter.event = _WaitEvent(self._owner)
        super().append(waiter)


class Watch:
    """The lock, waiters and callbacks of a future, created when a thread first waits for it or adds a callback."""

    __slots__ = ("callbacks", "lock", "waiters")

    def __init__(self, owner: FutureOwner) -> None:
        self.lock = ReentrantLock()
        self.waiters = _Waiters(owner)
        self.callbacks: list[Callable[[Future[Any]], object]] = []

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
