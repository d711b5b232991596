"""The functions that the benchmarks run on workers. Workers import this module; it imports next to nothing."""

from __future__ import annotations

import os
import time
from typing import Any


def noop(x: int) -> int:
    """Nothing."""
    return x


def noop_too(x: int) -> int:
    """Nothing, as a second function."""
    return x


def pause(seconds: float) -> int:
    """Sleep; return the process id."""
    time.sleep(seconds)
    return os.getpid()


def spin(milliseconds: float) -> int:
    """Use this much CPU time in this thread; return the time used, in nanoseconds."""
    begin = time.thread_time_ns()
    end = begin + int(milliseconds * 1_000_000)
    while (now := time.thread_time_ns()) < end:
        pass
    return now - begin


def square_slowly(x: int, seconds: float) -> tuple[int, int]:
    """Sleep; return the square and the process id."""
    time.sleep(seconds)
    return x * x, os.getpid()


def hold(folder: str) -> int:
    """Occupy a worker until the file `release` appears in the folder; write a file named after this process before."""
    with open(os.path.join(folder, f"held-{os.getpid()}"), "w", encoding="utf-8"):
        pass
    while not os.path.exists(os.path.join(folder, "release")):
        time.sleep(0.02)
    return os.getpid()


def add(*values: int) -> int:
    """The sum, kept small."""
    return sum(values) % 1_000_003


def length(payload: bytes) -> int:
    """Return the size of the argument."""
    return len(payload)


def weigh(data: Any) -> int:
    """Return the size of an array or of bytes, after reading both ends."""
    data[0], data[-1]
    return memoryview(data).nbytes


def give(size: int, value: int) -> bytes:
    """Return this many bytes."""
    return bytes([value]) * size
