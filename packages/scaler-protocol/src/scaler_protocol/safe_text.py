"""Foreign text made safe for logs, terminals and labels: names, reasons and errors that peers and tasks have written.

Such text may hold line breaks, which forge lines; escape sequences, which steer terminals; and characters without a
width or against the direction of writing, which make a text look like another one. They are shown as Python writes
them: `\\x1b`, `\\u202e`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, TypeVar

from scaler_protocol.monitoring import MonitorMessage

M = TypeVar("M", bound=MonitorMessage)
_LONG = frozenset({"texts", "failures", "events"})
"""Columns with tracebacks, which have several lines."""
_OUTPUT = "printed"
"""The column with pieces of output."""


def escaped(text: str) -> str:
    """The text on one line, with escapes for what cannot be printed."""
    return text if text.isprintable() else "".join(map(_escaped, text))


def escaped_lines(text: str, margin: str = "") -> str:
    """The text with its line breaks; lines after the first begin with `margin`, so that none looks like the first."""
    return text if text.isprintable() else f"\n{margin}".join(map(escaped, text.expandtabs().splitlines()))


def escaped_output(text: str) -> str:
    """A piece of output with its line feeds and carriage returns: a line may go on in the next piece."""
    lines = text.expandtabs().split("\n") if not text.isprintable() else [text]
    return "\n".join("\r".join(map(escaped, line.split("\r"))) for line in lines)


def escaped_message(message: M) -> M:
    """A monitor message with safe texts."""
    changed: dict[str, Any] = {}
    for field in fields(message):
        value = getattr(message, field.name)
        if type(value) is str:
            if not value.isprintable():
                changed[field.name] = escaped(value)
        elif _is_text_column(value) and not all(map(str.isprintable, value)):
            changed[field.name] = tuple(map(_escape_of(field.name), value))
    return replace(message, **changed) if changed else message


def _escape_of(column: str) -> Callable[[str], str]:
    if column == _OUTPUT:
        return escaped_output
    return escaped_lines if column in _LONG else escaped


def _is_text_column(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and type(value[0]) is str


def _escaped(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode()
