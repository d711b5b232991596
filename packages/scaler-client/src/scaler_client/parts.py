"""Calls of a custom serializer: one part per argument, one of which may stand for a future."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from scaler_client.task_context import input_payload
from scaler_protocol.serializer import split_parts

_FUTURE = "\0"
"""Ends the keyword of a part that is the 64-bit little-endian id of the task whose result is the argument."""


def future_part(keyword: str, task: int) -> tuple[str, bytes]:
    """Keyword and part for a future that is not done."""
    return keyword + _FUTURE, task.to_bytes(8, "little")


def read_parts(call: bytes, deserialize: Callable[[bytes], Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call, where it is run; raises MalformedMessageError, or what `deserialize` does."""
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for keyword, part in split_parts(call):
        if keyword.endswith(_FUTURE):
            keyword = keyword.removesuffix(_FUTURE)
            part = input_payload(int.from_bytes(part, "little"))
        value = deserialize(part)
        if keyword:
            kwargs[keyword] = value
        else:
            args.append(value)
    return tuple(args), kwargs
