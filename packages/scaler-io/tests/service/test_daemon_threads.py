"""Calls in threads that do not keep a program from ending."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from scaler_io.service.daemon_threads import call_each

HANGS = """
import asyncio, threading
from scaler_io.service.daemon_threads import call_aside, call_each

never = threading.Event()

async def main():
    call = asyncio.ensure_future(call_aside(lambda: call_each(lambda _: never.wait(), range(3), 2, "test"), "test"))
    await asyncio.sleep(0.1)
    call.cancel()

asyncio.run(main())
print("ended")
"""


def test_each_item_has_its_outcome() -> None:
    def halve(number: int) -> int:
        if number % 2:
            raise ValueError(f"{number} is odd")
        return number // 2

    calls = call_each(halve, range(6), 3, "test")
    assert [calls[number].result() for number in (0, 2, 4)] == [0, 1, 2]
    with pytest.raises(ValueError, match="5 is odd"):
        calls[5].result()
    assert call_each(halve, (), 3, "test") == {}


def test_so_many_calls_run_at_a_time() -> None:
    barrier = threading.Barrier(3, timeout=10)
    calls = call_each(lambda _: barrier.wait(), range(6), 3, "test")
    assert sorted(call.result() for call in calls.values()) == [0, 0, 1, 1, 2, 2]


def test_fewer_threads_do_where_no_more_are_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert [call.result() for call in call_each(str, range(3), 3, "test").values()] == ["0", "1", "2"]


def test_calls_that_hang_do_not_keep_the_program_from_ending() -> None:
    done = subprocess.run([sys.executable, "-c", HANGS], capture_output=True, encoding="utf-8", timeout=30)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ended\n", "")
