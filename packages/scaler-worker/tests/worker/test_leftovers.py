"""What a task leaves behind is undone before the next one runs: each case in a process of its own."""

from __future__ import annotations

import asyncio
import ctypes
import faulthandler
import io
import os
import pickle
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import cloudpickle
import pytest

from scaler_worker.worker.leftovers import Leftovers, standard_stream
from support.tasks import in_fork
from support.waiting import wait_until

LONG = 1000.0


def left_after(do: Callable[[], object], look: Callable[[], object]) -> str:
    """The state after a run that did this and was undone: `undone`, or what `look` returns if it differs."""

    def run() -> object:
        sys.stdout, sys.stderr = standard_stream(1), standard_stream(2)
        leftovers = Leftovers()
        leftovers.watch()
        before = look()
        assert not leftovers.may_have_changed()
        do()
        assert leftovers.may_have_changed() and look() != before
        leftovers.undo()
        assert not leftovers.may_have_changed()
        return "undone" if look() == before else look()

    return in_fork(run)


def timers() -> list[bool]:
    return [signal.getitimer(timer)[0] > 0 for timer in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)]


def streams() -> tuple[int, int]:
    return id(sys.stdout), id(sys.stderr)


def blocked_signals() -> str:
    return next(line for line in Path("/proc/self/status").read_text("utf-8").splitlines() if "SigBlk" in line)


@pytest.mark.parametrize(
    ("do", "look"),
    [
        (lambda: signal.alarm(int(LONG)), timers),
        (lambda: signal.setitimer(signal.ITIMER_REAL, LONG), timers),
        (lambda: signal.setitimer(signal.ITIMER_VIRTUAL, LONG, LONG), timers),
        (lambda: signal.setitimer(signal.ITIMER_PROF, LONG), timers),
        (
            lambda: signal.signal(signal.SIGALRM, lambda number, frame: None),
            lambda: signal.getsignal(signal.SIGALRM),
        ),
        (lambda: signal.signal(signal.SIGINT, signal.SIG_IGN), lambda: signal.getsignal(signal.SIGINT)),
        (lambda: signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM}), blocked_signals),
        (lambda: sys.setrecursionlimit(200), sys.getrecursionlimit),
        (lambda: setattr(sys, "stdout", None), streams),
        (lambda: setattr(sys, "stderr", io.StringIO()), streams),
    ],
)
def test_undone(do: Callable[[], object], look: Callable[[], object]) -> None:
    assert left_after(do, look) == "undone"


def test_the_function_itself_may_be_a_task() -> None:
    """A pickle names it by the module that implements it."""
    armed = pickle.dumps(signal.setitimer)
    assert left_after(lambda: pickle.loads(armed)(signal.ITIMER_REAL, LONG), timers) == "undone"


def test_what_is_watched_is_sent_by_its_name() -> None:
    def run() -> bool:
        Leftovers().watch()
        found = [signal.alarm, signal.signal, os.chroot, resource.setrlimit, sys.setrecursionlimit]
        sent = [cloudpickle.dumps(each) for each in found]
        return list(map(pickle.loads, sent)) == found and all(len(each) < 64 for each in sent)

    assert in_fork(run) == "True"


def test_timers_that_nobody_has_noted_are_disarmed() -> None:
    def run() -> list[bool]:
        leftovers = Leftovers()
        ctypes.CDLL(None).alarm(int(LONG))
        leftovers.undo()
        return timers()

    assert in_fork(run) == str([False] * 3)


def test_a_watchdog_is_called_off() -> None:
    def threads() -> int:
        return len(os.listdir("/proc/self/task"))

    def run() -> str:
        leftovers = Leftovers()
        leftovers.watch()
        wait_until(lambda: threads() == 1, "a fork has one thread")
        before = threads()
        faulthandler.dump_traceback_later(LONG, exit=True)
        assert leftovers.may_have_changed() and threads() == before + 1
        leftovers.undo()
        wait_until(lambda: threads() == before, "the watchdog's thread has ended")
        return "undone"

    assert in_fork(run) == "undone"


@pytest.mark.parametrize(
    "do",
    [
        lambda: sys.stdout.close(),
        lambda: sys.stdout.buffer.close(),
        lambda: sys.stdout.buffer.raw.close(),  # type: ignore[union-attr]
        lambda: sys.stdout.detach(),  # type: ignore[union-attr]
        lambda: setattr(sys, "stdout", io.TextIOWrapper(sys.stdout.buffer, encoding="utf-8")),
    ],
)
def test_a_standard_stream_can_be_printed_to_after_it_was_closed(do: Callable[[], object]) -> None:
    read, write = os.pipe()

    def run() -> str:
        os.dup2(write, 1)
        sys.stdout = standard_stream(1)
        leftovers = Leftovers()
        do()
        leftovers.undo()
        print("printed")
        return os.read(read, 100).decode()

    assert in_fork(run) == "printed\n"
    os.close(read)
    os.close(write)


def test_higher_limits_stay() -> None:
    """A module that is imported by one task raises the recursion limit for all that use it."""

    def run() -> int:
        leftovers = Leftovers()
        sys.setrecursionlimit(12345)
        leftovers.undo()
        return sys.getrecursionlimit()

    assert in_fork(run) == "12345"


def test_an_event_loop_leaves_nothing() -> None:
    def run() -> bool:
        leftovers = Leftovers()
        leftovers.watch()
        asyncio.run(asyncio.sleep(0))
        leftovers.undo()
        return leftovers.may_have_changed()

    assert in_fork(run) == "False"
