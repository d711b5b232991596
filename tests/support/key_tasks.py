"""Calls that tests of keys submit."""

from __future__ import annotations

import os

from scaler import Client


def grow(size: int) -> bytes:
    """A result that goes to object storage."""
    return bytes(size)


def submit_within(address: str, size: int) -> int:
    """What a task does that connects to its own cluster by the address."""
    with Client(address=address) as client:
        return client.submit(len, grow(size)).result()


def key_directory_here() -> str:
    """Where this worker's keys are."""
    return os.environ.get("SCALER_KEYS", "")
