"""Effects that a core may ask of any shell, and how a shell performs effects."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from scaler_protocol.lazy_dataclass import dataclass
from scaler_protocol.messages import Message


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message to a peer; if the peer is gone, the message is dropped."""

    to: bytes
    message: Message


@dataclass(frozen=True, slots=True)
class Log:
    """Log a line, perhaps about a task (its id) and the worker that has it; `level` is one of the logging module's."""

    level: int
    text: str
    task: int = 0
    worker: str = ""


@dataclass(frozen=True, slots=True)
class Stop:
    """End the process."""

    reason: str


Effect = Send | Log | Stop


def perform_each(
    effects: Iterable[Any],
    handlers: Mapping[type, Callable[[Any], object]],
    failed: Callable[[Any, Exception], object],
) -> None:
    """Perform effects in order, each by the handler of its type; one that fails does not stop the others.

    `failed` receives it with its exception.
    """
    for effect in effects:
        try:
            handlers[type(effect)](effect)
        except Exception as error:
            failed(effect, error)
