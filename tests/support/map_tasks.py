"""Calls for the tests of maps."""

from __future__ import annotations

from pathlib import Path

from scaler import Client
from support.waiting import wait_until


def double(number: int) -> int:
    """Twice the number."""
    return 2 * number


def fail_at_three(number: int) -> int:
    """The number; 3 raises."""
    if number == 3:
        raise ValueError("three")
    return number


def wait_for(flag: Path, number: int) -> int:
    """Task 0 waits for a file."""
    wait_until(lambda: number != 0 or flag.exists(), "the file")
    return number


def lazily(client: Client, number: int) -> list[int]:
    """Lazy maps within a task."""
    return list(client.imap(double, range(number), buffersize=2)) + sorted(client.imap_unordered(double, range(number)))
