"""The parts of a call of a custom serializer."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaler_protocol.errors import InvalidFieldError, MalformedMessageError
from scaler_protocol.serializer import Serializer, checked_callable, checked_serialize, join_parts, split_parts

NAMES = st.text(st.characters(codec="utf-8"), max_size=6)


@given(st.lists(st.tuples(NAMES, st.binary(max_size=20)), max_size=6))
def test_there_and_back(parts: list[tuple[str, bytes]]) -> None:
    assert split_parts(join_parts([name for name, _ in parts], [part for _, part in parts])) == parts


def test_the_bytes() -> None:
    assert join_parts(["", "b"], [b"1", b"22"]) == b"\0\0\1\0\0\0" + b"1" + b"\1\0\2\0\0\0" + b"b" + b"22"
    assert join_parts([], []) == b"" and split_parts(b"") == []


@pytest.mark.parametrize("keyword", ["k" * 70_000, "k\udc80"])
def test_a_keyword_that_no_call_can_hold_is_named(keyword: str) -> None:
    with pytest.raises(InvalidFieldError, match=r"the argument 'k.* of a call is 'k"):
        join_parts([keyword], [b""])
    with pytest.raises(InvalidFieldError, match="the argument 'key' of a call is 5, not"):
        join_parts(["key"], [5])  # type: ignore[list-item]


def test_every_part_has_a_name() -> None:
    with pytest.raises(ValueError, match="longer"):
        join_parts([""], [b"1", b"2"])


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (b"\0", "inside a header"),
        (b"\0\0\1\0\0\0", "its last part at 7"),
        (struct.pack("<HI", 0, 2**32 - 1), "its last part at"),
        (b"\1\0\0\0\0\0\xff", "not UTF-8"),
    ],
)
def test_what_is_no_call(call: bytes, what: str) -> None:
    with pytest.raises(MalformedMessageError, match=what):
        split_parts(call)


@given(st.binary(max_size=40))
def test_random_bytes(call: bytes) -> None:
    try:
        assert join_parts(*zip(*split_parts(call), strict=True)) == call if call else True
    except MalformedMessageError as error:
        assert str(error)


def test_a_serializer_has_both_methods() -> None:
    class Half(Serializer):
        @staticmethod
        def serialize(obj: object) -> bytes:
            return b""

    with pytest.raises(TypeError, match="deserialize"):
        Half()  # type: ignore[abstract]


class Returning(Serializer):
    """Returns what it is given."""

    @staticmethod
    def serialize(obj: Any) -> Any:
        return obj

    @staticmethod
    def deserialize(payload: bytes) -> Any:
        return payload


@pytest.mark.parametrize("serializer", [Returning, Returning()])
def test_a_serializer_that_returns_no_bytes_is_named(serializer: Any) -> None:
    dump = checked_serialize(serializer)
    assert [dump(written) for written in (b"a", bytearray(b"a"), memoryview(b"a"))] == [b"a"] * 3
    for written, kind in ((None, "NoneType"), ("a", "str"), ([1], "list")):
        with pytest.raises(TypeError, match=rf"^Returning\.serialize returned {kind}, expected bytes$"):
            dump(written)


@pytest.mark.parametrize("serializer", [Returning, Returning()])
def test_a_serializer_that_makes_no_function_is_named(serializer: Any) -> None:
    assert checked_callable(serializer, abs) is abs
    with pytest.raises(TypeError, match=r"^Returning\.deserialize returned str for a function, expected a callable$"):
        checked_callable(serializer, "abs")
