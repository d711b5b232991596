"""The record of an upload, and when it is too slow. Pure, no IO."""

from __future__ import annotations

from dataclasses import field
from typing import Final

from scaler_protocol.lazy_dataclass import dataclass
from scaler_protocol.objects import PART_BYTES
from scaler_storage.engine.segments import Segment

SLOWEST: Final = 1024 * 1024
"""Bytes in a second, on average, with which an upload keeps memory that others need."""
START_SECONDS: Final = 5.0
"""How much later it may be, for example as its connection broke."""


@dataclass(slots=True)
class UploadRecord:
    """An object that one peer is writing: in parts, or into an `allocated` segment."""

    session: int
    size: int
    segment: Segment
    missing: int
    begun: float
    allocated: bool = False
    version: int = 0
    """The version of the remote object that is being fetched; 0: a new object."""
    keep: bool = False
    """Whether its host keeps its replica."""
    parts: set[int] = field(default_factory=set)

    def is_slow(self, now: float) -> bool:
        """Whether its parts come so slowly that it must not keep the memory that others need."""
        return not self.allocated and len(self.parts) * PART_BYTES < (now - self.begun - START_SECONDS) * SLOWEST
