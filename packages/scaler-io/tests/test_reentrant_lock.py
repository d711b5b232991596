"""Real signals interrupt a thread that takes and releases a lock."""

from __future__ import annotations

import signal
import threading
from types import FrameType

import pytest

from scaler_io.reentrant_lock import ReentrantLock


class _AlarmError(Exception):
    """What the signal handler raises."""


def _raise(number: int, frame: FrameType | None) -> None:
    raise _AlarmError


def _is_free(lock: threading.RLock) -> bool:
    """Whether another thread can take it."""
    taken: list[bool] = []

    def take() -> None:
        taken.append(lock.acquire(blocking=False))

    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    return taken == [True]


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs interval timers")
@pytest.mark.timeout(method="thread")  # the other method's timer is taken here
@pytest.mark.parametrize("depth", [1, 2])
def test_a_signal_handler_that_raises_leaves_it_free(depth: int) -> None:
    before = signal.signal(signal.SIGALRM, _raise)
    try:
        for attempt in range(300):
            lock = ReentrantLock()
            with pytest.raises(_AlarmError):
                signal.setitimer(signal.ITIMER_REAL, 1e-4)
                while True:
                    with lock:
                        if depth == 2:
                            with lock:
                                pass
            assert _is_free(lock), attempt
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_it_is_reentrant_and_excludes_other_threads() -> None:
    lock = ReentrantLock()
    with lock:
        with lock:
            assert not _is_free(lock)
        assert not _is_free(lock)
    assert _is_free(lock)
