"""The resource usage of a run, in a fixed record that schedulers forward unread."""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

PROFILE = struct.Struct("<QQQIIIII")
"""Little-endian: duration and CPU time in microseconds, peak memory in bytes, process id, worker number, attempt, and
the microseconds of the duration in which objects were fetched, and in which the result was stored."""
LONGEST_RUN_US: Final = 2**56 - 1
"""The longest duration, 2,283 years: monitors compute with durations, in numbers that are as large."""
LONGEST_TRANSFER_US: Final = 2**32 - 1
_DURATION_END: Final = 7
"""The place of the highest byte of the duration."""


class Profile(NamedTuple):
    """One PROFILE record."""

    duration_us: int
    cpu_us: int
    peak_memory: int
    pid: int
    worker: int
    attempt: int
    fetch_us: int = 0
    store_us: int = 0

    @property
    def transfer_us(self) -> int:
        """Time for objects in all."""
        return self.fetch_us + self.store_us

    def packed(self) -> bytes:
        """The record."""
        return PROFILE.pack(*self)


NO_PROFILE = bytes(PROFILE.size)
"""For a task that never ran."""


def profile_at(profiles: bytes, position: int) -> Profile:
    """The record of the task at this position of a batch."""
    return Profile._make(PROFILE.unpack_from(profiles, position * PROFILE.size))


def has_endless_run(profiles: bytes) -> bool:
    """Whether a run of these records has taken longer than LONGEST_RUN_US."""
    return any(profiles[_DURATION_END :: PROFILE.size])
