"""Effects that a core may ask of any shell."""

from __future__ import annotations

from dataclasses import dataclass

from scaler_protocol.messages import Message


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message to a peer; if the peer is gone, the message is dropped."""

    to: bytes
    message: Message


@dataclass(frozen=True, slots=True)
class Log:
    """Log a line; `level` is one of the logging module's."""

    level: int
    text: str


@dataclass(frozen=True, slots=True)
class Stop:
    """End the process."""

    reason: str


Effect = Send | Log | Stop
