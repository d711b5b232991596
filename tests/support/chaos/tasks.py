"""Functions that workers run by name; each run leaves a line with its number and its attempt."""

from __future__ import annotations

import time

from scaler import Client, current_task
from support.tasks import note


class PlannedError(Exception):
    """The outcome of a task that is meant to fail."""


def _note_run(runs: str, number: int) -> None:
    task = current_task()
    assert task is not None
    note(runs, f"{number} {task.attempt}")


def work(runs: str, number: int, seconds: float = 0.0, size: int = 0, *inputs: object) -> int | bytes:
    """Take a while; the number, or so many bytes of it."""
    _note_run(runs, number)
    if seconds:
        time.sleep(seconds)
    return expected(number, size)


def expected(number: int, size: int) -> int | bytes:
    """What `work` returns."""
    return number.to_bytes(8, "big") * (size // 8) if size else number


def fail(runs: str, number: int) -> None:
    """Always a PlannedError."""
    _note_run(runs, number)
    raise PlannedError(number)


def fill_memory(runs: str, number: int, size: int, seconds: float) -> int:
    """Use so many bytes for a while; the number."""
    _note_run(runs, number)
    filled = b"x" * size
    time.sleep(seconds)
    del filled
    return number


def family(client: Client, runs: str, number: int, size: int) -> int:
    """A task with four children and eight grandchildren; the number, if all of them return what they should."""
    _note_run(runs, number)
    children = [client.submit(parent, client, child, size) for child in range(4)]
    assert [child.result() for child in children] == list(range(4))
    return number


def parent(client: Client, number: int, size: int) -> int:
    """The number, by way of two children that return so many bytes."""
    children = [client.submit(expected, number, size or 8) for _ in range(2)]
    assert all(child.result() == expected(number, size or 8) for child in children)
    return number
