"""Effects of the scheduler's core, beside those of its links. Pure, no IO."""

from __future__ import annotations

from scaler_protocol.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class WriteDump:
    """Send a dump to this operator."""

    to: bytes
