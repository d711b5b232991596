"""Functions that run in Symphony, where this module can be imported."""

from __future__ import annotations

import os
import time
from pathlib import Path

from scaler import Client
from support.gates import SECONDS


def square(value: int) -> int:
    return value * value


def raise_it(text: str) -> None:
    raise KeyError(text)


def leave(code: int) -> None:
    os._exit(code)


def wait_for_file(path: str, began: str = "") -> str:
    """Wait in a task until a file exists; `began` is made first."""
    if began:
        Path(began).touch()
    deadline = time.monotonic() + SECONDS
    while not Path(path).exists():
        assert time.monotonic() < deadline
        time.sleep(0.005)
    return path


async def later(value: int) -> int:
    return value + 1


def fibonacci(client: Client, n: int) -> int:
    if n < 2:
        return n
    a = client.submit(fibonacci, client, n - 1)
    b = client.submit(fibonacci, client, n - 2)
    total: int = a.result() + b.result()
    return total


def first_then_second(client: Client, began: str) -> list[int]:
    """Submit a second nested task after the first one has ended, while others wait for a place."""
    Path(began).touch()
    return [client.submit(abs, -1).result(), client.submit(abs, -2).result()]
