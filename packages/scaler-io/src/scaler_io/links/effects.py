"""What a core may ask of any shell."""

from __future__ import annotations

from dataclasses import dataclass

from scaler_protocol.messages import Message


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message to a peer; one that is gone is no error."""

    to: bytes
    message: Message


@dataclass(frozen=True, slots=True)
class Log:
    """Tell the operator; `level` is as in the standard library's logging."""

    level: int
    text: str


@dataclass(frozen=True, slots=True)
class Stop:
    """End the process."""

    reason: str


Effect = Send | Log | Stop
