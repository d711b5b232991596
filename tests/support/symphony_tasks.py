"""Functions that run in Symphony, where this module can be imported."""

from __future__ import annotations

import os
import time
from pathlib import Path

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
