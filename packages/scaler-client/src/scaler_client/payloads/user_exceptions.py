"""Operations on users' exceptions, whose classes may override `__setattr__`, or raise in `__str__`.

They read and write the traceback and the causes as `raise` and `except` do: without any method of the class.
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Final, NamedTuple

from scaler_protocol.ranges import shown

_TRACEBACK: Final[Any] = vars(BaseException)["__traceback__"]
_CAUSE: Final[Any] = vars(BaseException)["__cause__"]
_CONTEXT: Final[Any] = vars(BaseException)["__context__"]
_SUPPRESS: Final[Any] = vars(BaseException)["__suppress_context__"]
_DICT: Final[Any] = vars(BaseException)["__dict__"]
_NOTES: Final = "__notes__"


class Origin(NamedTuple):
    """The traceback, cause and context of an exception."""

    traceback: TracebackType | None = None
    cause: BaseException | None = None
    context: BaseException | None = None
    suppress_context: bool = False

    @classmethod
    def of(cls, error: BaseException) -> Origin:
        """The origin of this exception."""
        return cls(*(field.__get__(error) for field in (_TRACEBACK, _CAUSE, _CONTEXT, _SUPPRESS)))

    def give(self, error: BaseException) -> None:
        """Set it as the origin of this exception."""
        _TRACEBACK.__set__(error, self.traceback)
        _CAUSE.__set__(error, self.cause)
        _CONTEXT.__set__(error, self.context)
        _SUPPRESS.__set__(error, self.suppress_context)  # last: setting a cause sets it, too


def attributes_of(error: BaseException) -> dict[str, Any]:
    """The instance dict of an exception itself, no copy; calls no method of its class."""
    attributes: dict[str, Any] = _DICT.__get__(error)
    return attributes


def add_note(error: BaseException, note: str) -> None:
    """As the method of Python 3.11. Does nothing if `__notes__` of the exception is not a list or a tuple."""
    attributes = attributes_of(error)
    notes = attributes.get(_NOTES, ())
    if isinstance(notes, list | tuple):
        attributes[_NOTES] = [*notes, note]


def note_item(error: BaseException, number: int, row: Sequence[object] | None) -> None:
    """Add a note of the item of a map that has raised it, counted from 0, and its arguments if they are known."""
    arguments = "" if row is None else f": {', '.join(map(shown, row))}"
    add_note(error, f"raised by item {number} of the map{arguments}")


def headline(error: BaseException) -> str:
    """`Type: message`, or the type alone if the message is empty."""
    try:
        message = str(error)
    except BaseException:
        message = ""
    return ": ".join(filter(None, (type(error).__name__, message)))


def formatted(error: BaseException) -> str:
    """The exception as Python prints it; if that fails, its frames and its headline."""
    trace = Origin.of(error).traceback
    try:
        return "".join(traceback.format_exception(type(error), error, trace))
    except BaseException:
        frames = traceback.format_tb(trace)
        return "".join(["Traceback (most recent call last):\n", *frames, headline(error), "\n"])
