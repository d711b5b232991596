"""The calls of a custom serializer: one part per argument, which holds its bytes or refers to a task or an object."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from scaler_client.task_context import input_payload, object_payload
from scaler_protocol.objects import REFERENCE_BYTES
from scaler_protocol.serializer import split_parts

_REFERENCE = "\0"
"""Ends the keyword of a part that is no value: it is the id of a task (64 bits, little-endian) whose result is the
argument, or the reference of an object."""


def future_part(keyword: str, task: int) -> tuple[str, bytes]:
    """Keyword and part for the result of a task."""
    return keyword + _REFERENCE, task.to_bytes(8, "little")


def object_part(keyword: str, reference: bytes) -> tuple[str, bytes]:
    """Keyword and part for an object in object storage."""
    return keyword + _REFERENCE, reference


def read_parts(call: bytes, deserialize: Callable[[bytes], Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call, in the worker; raises MalformedMessageError, or what `deserialize` raises."""
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for keyword, part in split_parts(call):
        if keyword.endswith(_REFERENCE):
            keyword = keyword.removesuffix(_REFERENCE)
            named = len(part) == REFERENCE_BYTES
            part = bytes(object_payload(part) if named else input_payload(int.from_bytes(part, "little")))
        value = deserialize(part)
        if keyword:
            kwargs[keyword] = value
        else:
            args.append(value)
    return tuple(args), kwargs
