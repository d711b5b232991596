"""What the core of a client wants done. Pure, no IO."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scaler_client.core.records import Deliver, Discard
from scaler_protocol.errors import ScalerError
from scaler_protocol.messages import Message


@dataclass(frozen=True, slots=True)
class Transmit:
    """Give this to the transport, in order."""

    message: Message


@dataclass(frozen=True, slots=True)
class Connected:
    """A Welcome: the address of object storage, the incarnation of the scheduler; or why there will be none."""

    error: ScalerError | None
    storage: str = ""
    scheduler: int = 0


@dataclass(frozen=True, slots=True)
class Print:
    """What tasks wrote: stream (1 or 2) and text, in order."""

    texts: Sequence[tuple[int, bytes]]


@dataclass(frozen=True, slots=True)
class AnswerShutdown:
    """The scheduler's word on our Shutdown."""

    accepted: bool
    reason: str


@dataclass(frozen=True, slots=True)
class RestoreObjects:
    """Put in storage once more what it has lost, and `repeat` these tasks; or `give_up`."""

    tasks: Sequence[int]


@dataclass(frozen=True, slots=True)
class ListUnknownObjects:
    """Find out what storage has of this session; then `await_listed`."""


@dataclass(frozen=True, slots=True)
class DeleteUnknownObjects:
    """Free what was there then and is known to nobody now."""


@dataclass(frozen=True, slots=True)
class Call:
    """Everything before is performed: tell whoever waits for that."""

    whom: Callable[[], object]


ClientEffect = (
    Call
    | Transmit
    | Deliver
    | Connected
    | Print
    | AnswerShutdown
    | Discard
    | RestoreObjects
    | ListUnknownObjects
    | DeleteUnknownObjects
)
