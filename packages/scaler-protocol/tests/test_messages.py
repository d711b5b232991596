"""Messages: the classes, the schema and the specification agree."""

from __future__ import annotations

import re
from dataclasses import FrozenInstanceError, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

import pytest

from scaler_protocol import codec, handshake, messages
from scaler_protocol.capacity import UnitState
from scaler_protocol.handshake import Hello
from scaler_protocol.ids import first_task, named_function_id
from scaler_protocol.limits import DATA, DEFAULTS, ENTRIES, KEPT_BY_TYPE, PART, SECONDS, WORDS, limit_of
from scaler_protocol.messages import Cancel, Done, Encoding, Group, Message, Status, WorkerState
from scaler_protocol.monitoring import EventKind, TaskStep
from scaler_protocol.payloads import Payloads
from scaler_protocol.ranges import Column

if TYPE_CHECKING:
    from conftest import Wire

SPECIFICATION = Path(__file__).resolve().parents[3] / "docs" / "protocol.md"
KINDS = sorted(get_args(Message), key=lambda kind: str(kind.__name__))
PYTHON_TYPES = {"text": str, "data": bytes, "bool": bool, "float64": float}


def attributes(kind: type[Any]) -> set[str]:
    return {field.name for field in fields(kind) if field.init}


def section(name: str) -> str:
    """What the specification says of a message, or of the group."""
    found = re.search(rf"^#+ {name}\n(.*?)(?=^#)", SPECIFICATION.read_text(encoding="utf-8") + "\n#", re.M | re.S)
    assert found, f"{name} is not in {SPECIFICATION.name}"
    return found[1]


def test_the_schema_has_exactly_the_messages(wire: Wire) -> None:
    assert {name[0].upper() + name[1:] for name in wire.union()} == {k.__name__ for k in KINDS}
    assert len(KINDS) == 73


@pytest.mark.parametrize("kind", [*KINDS, Group])
def test_the_schema_has_exactly_the_fields(wire: Wire, kind: type[Any]) -> None:
    types, hints = wire.schema_types(kind), get_type_hints(kind)
    assert types.keys() == attributes(kind)
    for name, (element, is_list) in types.items():
        if element == "payloads":
            assert hints[name] is Payloads
        elif not is_list:
            assert hints[name] is PYTHON_TYPES.get(element, int)


@pytest.mark.parametrize("kind", KINDS)
def test_columns_are_fields(kind: type[Any]) -> None:
    columns = [column for group in getattr(kind, "COLUMNS", ()) for column in group]
    assert set(columns) <= attributes(kind) and len(columns) == len(set(columns))
    assert getattr(kind, "OPTIONAL", frozenset()) <= set(columns)


@pytest.mark.parametrize("kind", [*KINDS, Group])
def test_the_specification_has_exactly_the_fields(wire: Wire, kind: type[Any]) -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| ([\w\[\]]+) \|", section(kind.__name__), re.M))
    expected = {}
    for name, (element, is_list) in wire.schema_types(kind).items():
        written = "group" if name == "groups" else "bytes" if element in ("payloads", "data") else element
        expected[name] = ("payloads" if element == "payloads" else f"[{written}]") if is_list else written
    assert rows == expected


def written_limit(kind: type[Any], name: str, element: str, *, is_column: bool) -> str:
    """The limit of a field as its table has it: nothing where it is that of its type."""
    limit, default = limit_of(kind.__name__, name, element, is_column=is_column), DEFAULTS[element]
    usual = Column(default, ENTRIES, element in KEPT_BY_TYPE) if is_column else default
    return "" if limit == usual else limit.span


@pytest.mark.parametrize("kind", [*KINDS, Group])
def test_the_specification_has_the_limit_of_every_field(wire: Wire, kind: type[Any]) -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| [\w\[\]]+ \| ([^|]*?) *\|", section(kind.__name__), re.M))
    types = wire.schema_types(kind).items()
    assert rows == {name: written_limit(kind, name, element, is_column=is_list) for name, (element, is_list) in types}


def test_the_specification_has_the_limits_of_types() -> None:
    text = section("1.5 Limits of fields")
    for most in (WORDS.most, DATA.most, PART.most, ENTRIES, SECONDS.most):
        assert f"{most:,.0f}" in text


@pytest.mark.parametrize("kind", KINDS)
def test_the_specification_says_who_tells_whom_and_when(kind: type[Any]) -> None:
    for word in ("From", "To", "When", "Answer", "Errors"):
        assert f"**{word}**" in section(kind.__name__), word


@pytest.mark.parametrize("names", [Status, Encoding, WorkerState, handshake.Role, TaskStep, EventKind, UnitState])
def test_the_specification_has_the_numbers(names: type[Any]) -> None:
    text = SPECIFICATION.read_text(encoding="utf-8")
    for name, value in vars(names).items():
        if name.isupper():
            assert re.search(rf"^\| {value} \| {name} \|", text, re.M), name


def test_the_specification_has_the_limits() -> None:
    text = SPECIFICATION.read_text(encoding="utf-8")
    for limit in (handshake.INLINE_LIMIT, messages.MESSAGE_LIMIT, handshake.SESSION_CREDIT, 64 * 1024 * 1024):
        assert f"{limit:,}" in text


def example(name: str) -> list[bytes]:
    """The parts of a worked example in the specification."""
    text = SPECIFICATION.read_text(encoding="utf-8")
    found = re.search(rf"<!-- example: {name} -->\n```text\n(.*?)```", text, re.S)
    assert found, name
    parts: list[bytes] = []
    for line in found[1].splitlines():
        if line.startswith("  "):
            parts[-1] += bytes.fromhex(line[8:31])
        else:
            parts.append(b"")
    return parts


def test_the_worked_example_is_what_the_code_writes(wire: Wire) -> None:
    name = "math:sqrt"
    function, first = named_function_id(name), first_task(0x0A0B0C0D)
    submit = messages.Submit(
        [Group(function, encoding=Encoding.JSON)],
        [first + 1, first + 2],
        Payloads([b"[2]", b"[3]"]),
        functions=[function],
        names=[name],
        bodies=Payloads([b""]),
    )
    size, header, *body = example("submit")
    assert size == len(body[0]).to_bytes(8, "little")
    assert header == (1).to_bytes(8, "little") + bytes(8)
    assert body == wire.frames_of(submit)
    assert wire.frames_of(codec.decode(body)) == body


def test_messages_are_immutable_values() -> None:
    assert Cancel((1,)) == Cancel((1,)) and hash(Group(b"f")) == hash(Group(b"f"))
    with pytest.raises(FrozenInstanceError):
        Hello(1, b"", 1).epoch = 2  # type: ignore[misc]


def test_a_changed_done_is_encoded_again() -> None:
    done = codec.decode([bytes(f) for f in codec.encode(Done((1,), (0,), Payloads([b"r"]), agents=("a",)))])
    assert isinstance(done, Done) and done.encoded is not None
    changed = replace(done, agents=("b",))
    assert changed.encoded is None
    again = codec.decode([bytes(f) for f in codec.encode(changed)])
    assert isinstance(again, Done) and again.agents == ("b",)
