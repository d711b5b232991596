"""Calls for the tests of joblib."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, NamedTuple

from joblib import Parallel, delayed


class Span(NamedTuple):
    """When and where a call ran."""

    pid: int
    began: float
    ended: float


def square(number: int) -> tuple[int, int]:
    """The square, and the process that has computed it."""
    return number * number, os.getpid()


def noted(seconds: float) -> Span:
    """A call that takes so long."""
    began = time.monotonic()
    time.sleep(seconds)
    return Span(os.getpid(), began, time.monotonic())


def most_at_once(spans: list[Span]) -> int:
    """How many of these ran at the same time at most."""
    return max(sum(each.began <= span.began < each.ended for each in spans) for span in spans)


def is_writable(array: Any, other: Any) -> tuple[bool, bool]:
    """Whether these arrays may be changed."""
    return array.flags.writeable, other.flags.writeable


def is_same(array: Any, others: Any, other: Any) -> bool:
    """Whether this array is also in a list, and an attribute of an object."""
    return array is others[0] and array is other.array


class Holder:
    """An object with an array."""

    def __init__(self, array: Any) -> None:
        self.array = array


def next_first(array: Any) -> float:
    """Add one to the first value of an array, in place, and return it."""
    array[0] += 1
    return float(array[0])


def nested_sum(count: int, n_jobs: int | None) -> tuple[int, tuple[int, set[int]]]:
    """A sum of squares, the process of this call, and those of the calls inside of it."""
    found = Parallel(n_jobs=n_jobs)(delayed(square)(number) for number in range(count))
    return sum(value for value, _ in found), (os.getpid(), {pid for _, pid in found})


def raise_at(fails: int, number: int, folder: Path) -> int:
    """Fails for one number; the others leave a file."""
    if number == fails:
        raise ValueError(f"number {number}")
    (folder / str(number)).touch()
    return number


def square_or_fail_once(number: int, flag: Path) -> int:
    """Fails the first time."""
    if not flag.exists():
        flag.touch()
        raise ValueError("the first time")
    return number * number


class Sized:
    """Has names of arrays and tables, which mean something else here."""

    def __len__(self) -> int:
        return 3

    def memory_usage(self, unit: str) -> str:
        """Needs an argument, and returns no number."""
        return f"3 {unit}"
