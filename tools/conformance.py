"""Write tests/conformance/messages.json: a message of each type as bytes and as fields, for codecs in any language.

`make api` runs it. Whole numbers of 64 bits are texts and bytes are hexadecimal, as JSON has neither.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from scaler_io.links.streams import HEADER, join
from scaler_protocol import schema
from scaler_protocol.byte_planes import to_planes
from scaler_protocol.codec import decode, encode
from scaler_protocol.errors import MalformedMessageError, ScalerError
from scaler_protocol.limits import limit_of
from scaler_protocol.messages import Group, Message
from scaler_protocol.monitoring import PACKED_BATCH, PACKED_ID
from scaler_protocol.payloads import Payloads
from scaler_protocol.profiles import PROFILE, Profile

VECTORS = Path(__file__).resolve().parent.parent / "tests" / "conformance" / "messages.json"
ENTRIES = 2
SEQUENCE, ACKNOWLEDGED = 7, 2**40 + 5
GROUPS = (
    Group(bytes(range(16)), ("gpu", "memory"), (1, -1), priority=-3, retries=2, timeout_seconds=1.5, encoding=1),
    Group(bytes(range(16, 32)), depth=4, speculate=True, stream_output=2),
)
CANDIDATES: dict[str, tuple[tuple[Any, ...], ...]] = {
    "text": (("größe", "naïve"), ("gpu=1", "linux")),
    "data": (
        (bytes(range(16)), bytes(range(16, 32))),
        (bytes(range(20)), bytes(range(20, 40))),
        (bytes(range(32)), bytes(32)),
        (Profile(*range(1, 9)).packed() + Profile(*range(11, 19)).packed(), b""),
        *(
            (to_planes(bytes(range(2 * size)), size), b"")
            for size in (PACKED_BATCH.size, PACKED_ID.size, 1, PROFILE.size)
        ),
    ),
    "bool": ((True, False),),
    "float64": ((1.5, 0.25), (0.75, 0.25)),
}
WHOLE = ((2**63 + 1, 2**33), (2**31 - 1, 7), (255, 1), (40, 30), (2, 1), (1, 0), (1, 2))


def candidates(field: schema.Field) -> Iterator[tuple[Any, ...]]:
    """Pairs of values to try for a field or the entries of a column, the most telling ones first."""
    yield from CANDIDATES.get(field.kind, WHOLE)


def samples(kind: type[Any]) -> list[Any]:
    """Messages of a type: one with its defaults, if it may have them, and one with a value in each field that may."""
    choices = {
        field.attribute: [value for value in _values(kind, field)] for field in schema.struct(kind.__name__).fields
    }
    found: list[Any] = []
    for attempt in ({}, choices):
        message = _valid(kind, attempt)
        if message is not None and message not in found:
            found.append(message)
    return found


def _values(kind: type[Any], field: schema.Field) -> Iterator[Any]:
    """Values of a field within its limit, to be tried in this order."""
    limit = limit_of(kind.__name__, field.attribute, field.kind, is_column=field.is_list)
    for pair in candidates(field):
        value: Any = pair if field.is_list else pair[0]
        if field.kind == "payloads":
            value = Payloads([b"first", b""][: getattr(limit, "most", ENTRIES)])
        elif field.attribute == "groups":
            value = GROUPS
        if not limit.fault(value):
            yield value


def _valid(kind: type[Any], choices: dict[str, list[Any]]) -> Any:
    """A message with the first choices that do not contradict others; None if there are none."""
    left = {attribute: list(values) for attribute, values in choices.items()}
    while True:
        try:
            message = kind(**{attribute: values[0] for attribute, values in left.items() if values})
            decode([bytes(frame) for frame in encode(message)])
        except MalformedMessageError as error:
            fault = str(error.details["field"]).partition(".")[2]
            if not left.get(fault):
                return None
            del left[fault][0]
        except (ScalerError, TypeError):
            return None
        else:
            return message


def as_json(value: Any, kind: str) -> Any:
    """A value of a field, or an entry of a column, as JSON has it."""
    if isinstance(value, Group):
        return {"group": fields(value)}
    if kind in ("int64", "uint64"):
        return str(value)
    return bytes(value).hex() if kind in ("data", "payloads") else value


def fields(message: Any) -> dict[str, Any]:
    """All fields of a message, by the names of the schema; a column of lengths is its parts."""
    found = {}
    for field in schema.struct(type(message).__name__).fields:
        value = getattr(message, field.attribute)
        name = field.name.removesuffix("Lengths")
        is_list = field.is_list or field.kind == "payloads"
        found[name] = [as_json(entry, field.kind) for entry in value] if is_list else as_json(value, field.kind)
    return found


def vectors() -> list[dict[str, Any]]:
    """All vectors, by the numbers of the types."""
    kinds = {kind.__name__: kind for kind in get_args(Message)}
    found = []
    for name in schema.union():
        for message in samples(kinds[name]):
            again = replace(decode([bytes(frame) for frame in encode(message)]))
            frame = join([HEADER.pack(SEQUENCE, ACKNOWLEDGED), *encode(message)])
            found.append({"type": name, "fields": fields(again), "frame": bytes(frame).hex()})
    return found


def text() -> str:
    """The file."""
    lines = ",\n".join(json.dumps(vector, ensure_ascii=False) for vector in vectors())
    return f'{{"sequence": "{SEQUENCE}", "acknowledged": "{ACKNOWLEDGED}", "messages": [\n{lines}\n]}}\n'


if __name__ == "__main__":
    VECTORS.parent.mkdir(exist_ok=True)
    VECTORS.write_text(text(), "utf-8")
