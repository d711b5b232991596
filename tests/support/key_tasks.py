"""Calls that tests of keys submit."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

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


Halves = tuple[bytes, bytes]
"""A secret in two pieces, so that what searches for it does not itself hold it."""


def halves(secret: bytes) -> Halves:
    """The pieces of a secret."""
    return secret[: len(secret) // 2], secret[len(secret) // 2 :]


def search_here(secrets: Sequence[Halves], control: Halves) -> tuple[list[int], int]:
    """How often each secret is in this worker's memory, environment and open files; the control is, at least once."""
    held = b"".join(control)
    found = [0] * (len(secrets) + 1)
    for piece in _all_here():
        for number, (head, tail) in enumerate((*secrets, control)):
            at = piece.find(head)
            while at >= 0:
                found[number] += piece[at + len(head) : at + len(head) + len(tail)] == tail
                at = piece.find(head, at + 1)
    assert len(held) == sum(map(len, control))
    return found[:-1], found[-1]


def _all_here() -> Iterator[bytes]:
    with open("/proc/self/mem", "rb", 0) as memory:
        for line in Path("/proc/self/maps").read_text("utf-8").splitlines():
            bounds, rights = line.split()[:2]
            start, end = (int(part, 16) for part in bounds.split("-"))
            if rights.startswith("r") and start < 1 << 47:
                with contextlib.suppress(OSError):  # some of the kernel's own cannot be read
                    memory.seek(start)
                    yield memory.read(end - start)
    yield Path("/proc/self/environ").read_bytes()
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the one that lists them is gone
            if stat.S_ISREG(descriptor.stat().st_mode):
                yield descriptor.read_bytes()
