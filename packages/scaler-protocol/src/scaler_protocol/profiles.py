"""The resource usage of a run, in a fixed record that schedulers forward unread."""

from __future__ import annotations

import struct
from typing import NamedTuple

PROFILE = struct.Struct("<QQQIII")
"""Little-endian: duration and CPU time in microseconds, peak memory in bytes, process id, worker number, attempt."""


class Profile(NamedTuple):
    """One PROFILE record."""

    duration_us: int
    cpu_us: int
    peak_memory: int
    pid: int
    worker: int
    attempt: int


NO_PROFILE = PROFILE.pack(0, 0, 0, 0, 0, 0)
"""For a task that never ran."""


def profile_at(profiles: bytes, position: int) -> Profile:
    """The record of the task at this position of a batch."""
    return Profile._make(PROFILE.unpack_from(profiles, position * PROFILE.size))
