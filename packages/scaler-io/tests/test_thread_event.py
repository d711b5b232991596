"""Events, also those whose threads are interrupted again and again."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType

import pytest

from scaler_io import thread_event
from scaler_io.thread_event import ThreadEvent, check_may_wait, never_wait_here

DEADLINE = 20.0


def test_it_happens_once_for_everybody() -> None:
    latch = ThreadEvent()
    assert not latch.is_set() and not latch.wait(0.0) and not latch.wait(-1.0)
    heard: list[bool] = []
    threads = [threading.Thread(target=lambda: heard.append(latch.wait(DEADLINE))) for _ in range(5)]
    for thread in threads:
        thread.start()
    latch.set()
    latch.set()
    for thread in threads:
        thread.join(DEADLINE)
    assert heard == [True] * 5
    assert latch.is_set() and latch.wait(0.0) and latch.wait(DEADLINE)


def test_it_is_waited_for_in_pieces_where_a_wait_lets_no_signal_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """So it is on Windows."""
    monkeypatch.setattr(thread_event, "_LONGEST_WAIT", 0.001)
    event, waits = ThreadEvent(), ThreadEvent()
    assert not event.wait(0.02)
    heard: list[bool] = []

    def wait() -> None:
        waits.set()
        heard.append(event.wait())

    thread = threading.Thread(target=wait)
    thread.start()
    assert waits.wait(DEADLINE)
    event.set()
    thread.join(DEADLINE)
    assert heard == [True]


def test_a_cleared_event_is_waited_for_again() -> None:
    event, heard = ThreadEvent(), ThreadEvent()

    def answer() -> None:
        for _ in range(100):
            event.wait()
            event.clear()
            heard.set()

    thread = threading.Thread(target=answer)
    thread.start()
    for _ in range(100):
        event.set()
        assert heard.wait(DEADLINE)
        heard.clear()
        assert not heard.is_set() and not heard.wait(0.0)
    thread.join(DEADLINE)
    assert not thread.is_alive() and not event.is_set()


def test_a_thread_that_serves_others_is_told_that_it_must_not_wait() -> None:
    over, open_latch = ThreadEvent(), ThreadEvent()
    over.set()
    found: list[object] = []

    def serve() -> None:
        never_wait_here()
        found.append(over.wait(DEADLINE))
        with pytest.raises(RuntimeError, match=r"thread serving, .*finalizer"):
            open_latch.wait(DEADLINE)
        found.append("told")

    thread = threading.Thread(target=serve, name="serving")
    thread.start()
    thread.join(DEADLINE)
    assert found == [True, "told"]
    check_may_wait()


def test_those_who_set_it_at_once_do_not_meet() -> None:
    for _ in range(200):
        latch, begin = ThreadEvent(), threading.Barrier(4)

        def run(act: object, latch: ThreadEvent = latch, begin: threading.Barrier = begin) -> None:
            begin.wait(DEADLINE)
            latch.set() if act == "set" else latch.wait(DEADLINE)

        threads = [threading.Thread(target=run, args=(act,)) for act in ("set", "set", "wait", "wait")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE)
        assert latch.wait(0.0) and not any(thread.is_alive() for thread in threads)


@pytest.mark.parametrize("count", [200, pytest.param(5000, marks=pytest.mark.soak)])
def test_what_interrupts_a_wait_is_all_that_comes_of_it(count: int) -> None:
    latch, interrupts = ThreadEvent(), 0

    def interrupt(number: int, frame: FrameType | None) -> None:
        if frame is not None and frame.f_code.co_filename == thread_event.__file__:
            raise KeyboardInterrupt

    def send() -> None:
        while interrupts < count:
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, interrupt)
    sender = threading.Thread(target=send)
    try:
        sender.start()
        while interrupts < count:
            try:
                latch.wait(DEADLINE)
            except KeyboardInterrupt:
                interrupts += 1
    finally:
        interrupts = count
        sender.join(DEADLINE)
        signal.signal(signal.SIGINT, before)
    assert not latch.wait(0.0)
    threading.Timer(0.01, latch.set).start()
    assert latch.wait(DEADLINE)
